from _typeshed import ReadableBuffer

def best_sources(
    targets: ReadableBuffer,
    sources: ReadableBuffer,
    paths: ReadableBuffer,
    links: ReadableBuffer,
    nodes: int,
    prompt: float,
    deadline_us: float,
    deviations: float,
    min_gain_us: float,
    max_queue_us: float,
    barred: ReadableBuffer,
) -> tuple[list[tuple[int, float, int, float, int, int, float, int]], list[int]]: ...
