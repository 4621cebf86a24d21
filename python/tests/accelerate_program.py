"""The smallest program of Hugging Face Accelerate, as in its documentation: nothing in it depends on hexagram.

Rank 0 prints the backend that trained the model, and the sum of the weights.
"""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)

torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters())
dataset = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
data = DataLoader(dataset, batch_size=8, shuffle=True)

model, optimizer, data = accelerator.prepare(model, optimizer, data)

model.train()
for _ in range(3):
    for source, targets in data:
        optimizer.zero_grad()
        output = model(source)
        loss = F.cross_entropy(output, targets)
        accelerator.backward(loss)
        optimizer.step()

losses = accelerator.gather(loss.detach().reshape(1))
weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
group = torch.distributed.group.WORLD
accelerator.print(f"{type(group).__name__} {len(losses)} ranks {weights.double().abs().sum().item():.4f}")
accelerator.end_training()
