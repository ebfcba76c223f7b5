import asyncio

from hekla.placement.model import Job, JobSpec
from hekla.scheduler.retrying import hold_back
from hekla.testing import virtual_time


def test_the_shorter_of_two_rests_does_not_end_the_longer_one() -> None:
    """A job of which a bind was refused for a second and an eviction for a minute sits out the minute."""
    job, woken = Job(JobSpec(uid="u", name="train")), list[bool]()

    async def story() -> None:
        job.failed_at = 7
        hold_back(job, 60.0, lambda: woken.append(job.is_held))
        hold_back(job, 1.0, lambda: woken.append(job.is_held))
        await asyncio.sleep(2.0)
        assert job.is_held
        assert job.failed_at == 7
        await asyncio.sleep(60.0)
        assert not job.is_held
        assert job.failed_at == -1, "it is tried anew"

    virtual_time.run(story())
    assert woken == [True, False]
