"""How many jobs one storage carries at once, before a burst takes longer than alone and before more jobs only wait longer.

    plan file | recorded run | probe | fio's JSON -> inputs -> law -> chain, simulation -> planning -> text, JSON, picture

A *stream* is a job that moves a burst right now; a job that computes is none. The rooms' words: `law` says what one of
n streams gets, `chain` and `simulation` how many streams n jobs make, `planning` which number of jobs to run.
"""

from prefect_cachewatch.capacity.inputs import PlanInput
from prefect_cachewatch.capacity.planning import plan
from prefect_cachewatch.capacity.results import LimitPlan

__all__ = ["LimitPlan", "PlanInput", "plan"]
