"""Whether the daemon's books balance after all clients: nothing is left behind, lost or failed."""
from common import check_equal, settled_counters

now = settled_counters()
check_equal(now["specd_kv_blocks_free"] + now["specd_kv_blocks_cached"], now["specd_kv_blocks"], "free and cached pages")
drafted = now["specd_spec_decode_num_draft_tokens_total"]
ends = {end: now[f"specd_spec_decode_num_{end}_tokens_total"] for end in ("accepted", "rejected", "discarded")}
check_equal(sum(ends.values()), drafted, f"drafted tokens and what became of them ({ends})")
check_equal(now["specd_route_requests_total"],
            sum(now[f"requests_{outcome}"] for outcome in ("stop", "length", "cancelled", "error")),
            "requests that routes admitted and requests that ended")
for series in ("requests_error", "specd_spec_decode_cut_total", "specd_spec_decode_lost_requests_total",
               "specd_spec_decode_suspensions_total", "specd_plugin_defects_total", "specd_plugin_failures_total"):
    check_equal(now[series], 0, series)
print(f"-> {now['specd_route_requests_total']:.0f} requests, {drafted:.0f} drafted tokens: {ends}")
