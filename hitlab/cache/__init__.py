"""Cache models: what a real engine's prefix cache answers, one request after another."""
