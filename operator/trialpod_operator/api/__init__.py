"""The custom resources as typed models, and what reads and checks manifests against them."""
