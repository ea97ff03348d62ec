"""What every room may use: lists of tensors as vectors, and a constructor's arguments."""
