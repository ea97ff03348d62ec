"""The UCI regression benchmark."""
