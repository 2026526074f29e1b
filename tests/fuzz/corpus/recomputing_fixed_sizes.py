TOKENS = {"ids": 5, "others": 5}
SHAPES = [(2, 3), (5, 4)]
DYNAMIC = "auto"
OBJECTIVE = "storage"
VOCABULARY = 5


class Model2(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.emb = nn.Embedding(5, 32)
        self.proj = nn.Linear(32, 8)
        self.to(torch.bfloat16).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = self.proj(self.emb(ids.mT))
        v1 = F.pad(v0, (0, 0, -1, 1))
        v2 = v1[None] * v1[:, None]
        v3 = v1.masked_fill(v0 > 0.3, 0.5)
        v4 = torch.cat([v2, torch.zeros_like(v2)], -3)
        v5 = v3 * v3.shape[-2]
        v6 = F.pad(v3, (1, 1), mode='reflect')
        return (v4, {'a': (v4, v5, v6, v0,)})

