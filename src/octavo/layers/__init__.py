"""Parts that model files are built of. They know tensors and weights, never storage kinds."""
