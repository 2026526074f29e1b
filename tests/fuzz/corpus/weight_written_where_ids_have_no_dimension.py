TOKENS = None
SHAPES = [(2, 3)]
DYNAMIC = False
OBJECTIVE = "storage"
VOCABULARY = 7


class Model0(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(7, 8))
        self.eval()

    def forward(self, ids, others, hidden, mask):
        v0 = self.table[ids.int()]
        v1 = v0.scatter_(0, torch.zeros_like(v0).long(), 0.5)
        return (v1,)
