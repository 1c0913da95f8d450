# A Debian with Python 3.11 or later as `python`, and its venv module.
ARG BASE=python:3.12.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
RUN python -m venv /opt/queenright
ENV PATH=/opt/queenright/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# With it, bytecode is checked by content. By time, half of it is stale: buildah and podman round the times of copies.
ENV SOURCE_DATE_EPOCH=315532800
# Before the sources: this layer changes only with the pinned packages. The secrets are optional: docs/containers.md.
COPY requirements/llm.txt requirements/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.pem \
    pip install --require-hashes --requirement requirements/llm.txt
COPY . .
# The packages that are removed again are only for building.
RUN pip install --no-deps --no-build-isolation --no-index . \
    && pip uninstall --yes hatchling pathspec pluggy trove-classifiers setuptools pip

FROM ${BASE}
RUN useradd --uid 10001 --no-log-init --no-create-home --home-dir /var/lib/queenright --shell /usr/sbin/nologin queenright \
    && install --directory --owner=queenright --group=queenright /var/lib/queenright
COPY --from=build /opt/queenright /opt/queenright
ENV PATH=/opt/queenright/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /var/lib/queenright
EXPOSE 8420 4318
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8420/healthz', timeout=2)"]
CMD ["queenright", "serve", "--host", "0.0.0.0", "--storage", "/var/lib/queenright"]
