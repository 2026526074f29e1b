TOKENS = {"ids": 9, "others": 5}
SHAPES = [(4,)]
DYNAMIC = False
OBJECTIVE = "storage"
VOCABULARY = 9


class Model6(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.emb = nn.Embedding(9, 32)
        self.up = nn.Linear(32, 24)
        self.to(torch.float64).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = F.silu(self.up(self.emb(ids)))
        v1 = torch.cat([v0, torch.zeros_like(v0)], 1)
        return (v1,)


