"""Reservations: room kept for jobs that need much of the cluster, which others use until then (backfill).

`book.py` has the rules and what is kept, one `Reservation` per job; `forecast.py` finds out when and where a job will fit;
`place_beside.py` places other jobs on what is left. `plugins/reservation.py` switches it on.
"""
