# One image for every service; docker-compose.yml says which one a container runs.
FROM python:3.11-slim-bookworm AS build
# Where pip looks besides its default, for example an index with torch's CPU builds.
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY constraints.txt pyproject.toml README.md ./
RUN python -m venv /opt/kolm \
 && /opt/kolm/bin/python -m pip install --quiet --no-cache-dir -c constraints.txt hatchling editables
COPY ledger ./ledger
COPY protos ./protos
COPY services ./services
RUN /opt/kolm/bin/python -m pip install --quiet --no-cache-dir --no-build-isolation -c constraints.txt '.[all]'

FROM python:3.11-slim-bookworm
COPY --from=build /opt/kolm /opt/kolm
# The uid is fixed so that volumes shared between containers keep one owner.
RUN groupadd --gid 10001 kolm \
 && useradd --uid 10001 --gid kolm --create-home kolm \
 && install -d -o kolm -g kolm -m 0700 /var/lib/kolm /var/lib/kolm/ledger /var/lib/kolm/ledger/public \
      /var/lib/kolm/content-keys /var/lib/kolm/generation /var/lib/kolm/generation/public /var/lib/kolm/auditor \
      /var/lib/kolm/auditor/public /var/lib/kolm/registry /var/lib/kolm/witness /var/lib/kolm/trusted \
      /var/lib/kolm/principals /var/lib/kolm/token /tokens/generation /tokens/auditor /tokens/registry /tokens/explorer
ENV PATH=/opt/kolm/bin:$PATH PYTHONUNBUFFERED=1 NUMBA_CACHE_DIR=/opt/kolm/cache/numba KOLM_KERNEL_CACHE=/opt/kolm/cache/kernels
# Kernels for the machine that builds; another kind of CPU compiles its own at its first start, into the same folder.
RUN kolm doctor --compile && chown -R kolm:kolm /opt/kolm/cache
USER kolm
WORKDIR /home/kolm
ENTRYPOINT ["python", "-m"]
CMD ["services.ledger", "--help"]
