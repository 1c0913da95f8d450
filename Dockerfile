FROM python:3.12.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/queenright
ENV PATH=/opt/queenright/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Before the sources: this layer changes only with the pinned packages.
COPY requirements/llm.txt requirements/
RUN pip install --require-hashes --requirement requirements/llm.txt
COPY . .
RUN pip install --no-deps --no-build-isolation --no-index .

FROM python:3.12.11-slim-bookworm
RUN useradd --system --uid 10001 --home-dir /var/lib/queenright queenright \
    && install --directory --owner=queenright /var/lib/queenright
COPY --from=build /opt/queenright /opt/queenright
ENV PATH=/opt/queenright/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /var/lib/queenright
EXPOSE 8420 4318
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8420/healthz', timeout=2)"]
CMD ["queenright", "serve", "--host", "0.0.0.0", "--storage", "/var/lib/queenright"]
