"""Kubernetes: an API server for tests, and the tests that speak to it."""
