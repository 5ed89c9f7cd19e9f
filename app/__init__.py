"""NexusKV: is this model state safe to reuse, is it worth it, from where, and what happened.

The packages in the order a request passes them:

describe   app.contract    what a piece of state is, and when two are compatible (pure)
match      app.index       which registered states cover a query's tokens
validate   app.contract    evidence compared field by field, failing closed
plan       app.planner     what reuse costs, in microseconds (pure)
           app.policy      what an operator allows: versions, evaluation (app.quota counts)
reserve    app.execution   the claim on a materialization option, the choice of a backend
execute    app.execution   the backend that acts; app.transfer speaks to app.worker
commit | fall back         app.execution
observe    app.decisions   one decision for every answer

`app.lifecycle` composes the steps and holds all control flow between them. `app.bridge` (the
Locus wire), `app.api` (the /v1 map) and `app.cli` stand in front; `app.db` and `app.control`
(keys, health) serve them. `app.topology` knows the workers; `app.worker` is their own process.
"""
