"""`export`: PyTorch models as StableHLO that needs neither PyTorch nor the model's code to run.

`capture` traces the model with torch.export, `training` adds gradients and an optimizer's step,
`symbols` substitutes the sizes, and `lowering` emits the programs.
"""
