from services.generation.target.linear import padded_rows


def test_a_pass_is_rounded_up_by_little_and_to_few_sizes() -> None:
    sizes = [padded_rows(rows) for rows in range(1, 1025)]
    assert all(size >= rows for rows, size in enumerate(sizes, 1))
    assert all(size <= rows * 1.25 for rows, size in enumerate(sizes, 1))
    assert len(set(sizes)) < 100
    assert sizes == sorted(sizes)
