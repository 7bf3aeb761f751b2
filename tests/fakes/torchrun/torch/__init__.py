"""A fake torch that holds nothing but a fake torchrun: the real one takes seconds to import."""
