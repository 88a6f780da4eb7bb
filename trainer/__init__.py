"""The trainer, which runs on every rank. It follows docs/contract.md and nothing else."""
