"""The soak of `scripts/soak-server`, short: requests with random faults at a server of its own process."""

from __future__ import annotations

from soaking import Server, lines_of, soak


def test_random_faults_cost_no_answer_and_no_weight() -> None:
    with Server("sim:12MiB") as server:
        report = soak(server, requests=40, clients=4, kinds=8, seed=7)
    said = "\n".join(lines_of(report, server))
    assert report.wrong == [], said
    assert server.weights_kept, said
    assert server.idle, said
    assert report.figures["mmswap_windows_total"] > 0, said
    assert report.figures["mmswap_evicted_bytes_total"] == report.figures["mmswap_restored_bytes_total"] > 0, said
    assert report.figures["mmswap_spills_total"] == 0, said
