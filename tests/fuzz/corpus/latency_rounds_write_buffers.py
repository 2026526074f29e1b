TOKENS = {"ids": 7, "others": 5}
SHAPES = [(2, 4)]
DYNAMIC = False
OBJECTIVE = "latency"
VOCABULARY = 7


class Model0(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(7, 8))
        self.to(torch.bfloat16).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = self.table[ids]
        v1 = (v0 @ v0.mT).softmax(-1) @ v0
        v2 = v0.unbind(-3)[0]
        v3 = v2 * (ids > 0).any()
        return [v1, v3]


class Model1(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Parameter(torch.randn(7, 8))
        self.to(torch.bfloat16).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = F.embedding(ids[..., None], self.table)
        v1 = v0.topk(2, 3)[0]
        v2 = v0 + torch.linspace(0, 1, 8).to(torch.bfloat16)
        return {"first": v1, "rest": [v2]}


class Model2(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.emb = nn.Embedding(7, 8)
        self.small = nn.Embedding(7, 8)
        self.proj = nn.Linear(8, 8)
        self.w8 = nn.Buffer(torch.randn(8))
        self.to(torch.bfloat16).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = torch.cat([self.proj(self.emb(ids)), self.small(ids.int())], -1)
        v1 = v0.unbind(-1)[0]
        v2 = F.pad(v1, (1, 1), mode='reflect')
        v3 = v2.transpose(1, -2)
        v4 = self.w8.mul_(0.5)
        v5 = v2.to(torch.bfloat16)
        v6 = F.avg_pool1d(v5, 1)
        return [v3, v4, v6, v1]


class Model3(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.emb = nn.Embedding(7, 8)
        self.small = nn.Embedding(7, 8)
        self.proj = nn.Linear(8, 8)
        self.positions = nn.Parameter(torch.randn(8, 8))
        self.w8 = nn.Buffer(torch.randn(8))
        self.to(torch.bfloat16).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = self.proj(self.emb(ids.int()))
        v1 = torch.stack([v0, self.small(others)], 2)
        v2 = v1 + self.positions[: v1.shape[-2]]
        v3 = F.layer_norm(v0, (8,), self.w8, self.w8)
        v4 = v0 + torch.ones_like(v0).cumsum(-3)
        v5 = v4.sign().int()
        v6 = v5.zero_()
        return (v2, v3, v6,)

