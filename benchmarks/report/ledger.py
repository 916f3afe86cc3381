"""Tables of the ledger: appended receipts and exported bundles."""

from __future__ import annotations

from benchmarks.report.tables import Results, link, machine_name, table


def ledger(results: Results) -> str:
    rows = []
    for record in results["ledger"]:
        for store, each in record.figures.items():
            many = next(case for case in each["clients"] if case["clients"] == 64)
            rates = (f"{case['appends_per_second']:,} ({case['p99_ms']:.0f} ms)" for case in (each["streaming"], many))
            growth = ", ".join(f"{size['streaming']['appends_per_second']:,}" for size in each["growth"])
            rows.append((machine_name(record.machine), store, *rates, growth, link(record)))
    return table(
        "machine | store | receipts/s, one stream (99 %) | 64 callers one by one (99 %) |"
        " one stream into a log of 10³, 10⁴, … | ",
        rows,
    )


def bundle(results: Results) -> str:
    rows = [
        (
            machine_name(record.machine),
            f"{each['receipts']:,}",
            f"{each['megabytes']:.0f} MB",
            f"{each['export_seconds']:.0f} s",
            f"{each['verify_seconds']:.0f} s",
            f"{each['peak_megabytes']} MB",
            link(record),
        )
        for record in results["bundle"]
        for each in [record.figures]
    ]
    return table("machine | receipts | bundle | export | `kolm verify` | its memory | ", rows)


def fleet(results: Results) -> str:
    """The rates of one log, as a list."""
    logs = [
        f"- One log on {machine_name(record.machine)}, {record.machine.cores} cores, takes"
        f" {each['streaming']['appends_per_second']:,} receipts/s from one stream into {store} ({link(record)})."
        for record in results["ledger"]
        for store, each in record.figures.items()
    ]
    bundles = [
        f"- `kolm verify` reads a bundle of {figures['receipts']:,} receipts, {figures['megabytes']:.0f} MB, in"
        f" {figures['verify_seconds']:.0f} s on {machine_name(record.machine)} ({link(record)})."
        for record in results["bundle"]
        for figures in [record.figures]
    ]
    return "\n".join([*logs, *bundles])
