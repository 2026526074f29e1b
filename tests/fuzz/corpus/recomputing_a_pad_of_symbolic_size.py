TOKENS = {"ids": 9, "others": 5}
SHAPES = [(2, 3), (4, 2)]
DYNAMIC = True
OBJECTIVE = "storage"
VOCABULARY = 9


class Model0(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(9, 8))
        self.lin = nn.Linear(8, 8)
        self.w88 = nn.Buffer(torch.randn(8, 8))
        self.to(torch.float32).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = F.embedding(ids, self.table)
        v1 = v0.repeat(1, *v0.dim() * (1,))
        v2 = self.lin(v0) * torch.sigmoid(v0)
        v3 = F.bilinear(v1, v1, self.w88[None])
        return (v2, v3,)


class Model1(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Parameter(torch.randn(9, 8))
        self.to(torch.float32).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = self.table[ids.roll(1, -1)]
        v1 = F.linear(v0, self.table).softmax(-1)
        v2 = torch.cat([v1, v1], -2)
        v3 = v2.select(1, 0)
        v4 = F.silu(v3)
        v5 = F.embedding(ids.flatten(), self.table)
        v6 = v0.type_as(hidden)
        v7 = torch.cat([v6, torch.zeros_like(v6)], -2)
        v8 = v1.half().to(v1.dtype)
        v9 = F.rms_norm(v2, v2.shape[-1:])
        return {"first": v4, "rest": [v5, v7, v8, v9, v3]}


class Model2(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.emb = nn.Embedding(9, 32)
        self.small = nn.Embedding(9, 8)
        self.proj = nn.Linear(32, 8)
        self.to(torch.float32).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = torch.cat([self.proj(self.emb(ids)), self.small(others)], -1)
        v1 = v0.log_softmax(-3)
        v2 = F.batch_norm(v1, None, None, training=True)
        v3 = v0.roll(1, 2)
        return (v2, {'a': (v2, v3,)})


class Model3(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.emb = nn.Embedding(9, 32)
        self.proj = nn.Linear(32, 8)
        self.to(torch.float32).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = self.proj(self.emb(ids))
        v1 = F.pad(v0, (0, 0, -1, 1))
        v2 = v1.repeat_interleave(2, -2)
        return {"first": v2, "rest": []}


class Model4(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.table = nn.Parameter(torch.randn(9, 8))
        self.to(torch.float32).eval()

    def forward(self, ids, others, hidden, mask):
        v0 = self.table[ids.roll(1, -1)]
        v1 = v0.sign().int()
        v2 = v0.to(torch.bfloat16)
        return {"first": v1, "rest": [v2]}

