"""Rates of llama.cpp's programs."""

from benchmarks.families import at_once

_TABLE = """
main: n_kv_max = 1056, n_batch = 2048

|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|     2 |     64 |    4 |    264 |    0.050 |   160.00 |    4.000 |    64.00 |    4.050 |    65.19 |
|     2 |     64 |   16 |   1056 |    0.100 |   320.00 |    8.000 |   128.00 |    8.100 |   130.37 |
"""


def test_the_rates_of_several_sequences_are_read_from_llama_batched_benchs_table() -> None:
    assert dict(at_once(_TABLE)) == {4: 64.0, 16: 128.0}
