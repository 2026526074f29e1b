TOKENS = {"ids": 7, "others": 5}
SHAPES = [(2, 3), (5, 4)]
DYNAMIC = "auto"
OBJECTIVE = "storage"
VOCABULARY = 7


class Model7(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.table = nn.Parameter(torch.randn(7, 8))
        self.lin = nn.Linear(8, 8)
        self.conv = nn.Conv1d(8, 8, 1)
        self.to(torch.float64).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = self.lin(F.embedding(ids, self.table))
        v1 = v0.softmax(-1)
        v2 = v0.transpose(-3, 2)
        v3 = F.embedding(ids.mT, self.table)
        v4 = v3.mul_(0.5)
        v5 = F.embedding(ids.mT, self.table)
        v6 = F.silu(v5)
        v7 = v2.narrow(-1, 0, 2)
        v8 = F.linear(v0, self.lin.weight.T)
        v9 = self.conv(v5.mT).mT
        return (v1, {'a': (v1, v4, v6, v7, v8, v9,)})


class Model8(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(8)
        self.emb = nn.Embedding(7, 64)
        self.small = nn.Embedding(7, 8)
        self.proj = nn.Linear(64, 8)
        self.to(torch.float64).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = self.proj(self.emb(ids)) * self.small(others)
        return v0


class Model9(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(9)
        self.table = nn.Parameter(torch.randn(7, 8))
        self.lin = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.to(torch.float64).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = F.embedding(ids.flip(0), self.table)
        v1 = (v0 > 0).to(torch.float64)
        v2 = self.lin(F.gelu(self.norm(v0)))
        return {"first": v1, "rest": [v2]}
