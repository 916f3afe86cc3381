"""A model that several processes share: tensor parallelism (Shoeybi et al. 2019) by gathers, without a shared sum."""
