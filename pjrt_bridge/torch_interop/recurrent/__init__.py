"""Recurrent layers (`nn.RNN`, `nn.GRU`, `nn.LSTM`) as one operator for all steps of time."""
