# This package in a generator's own image, in a virtual environment of its own, so that neither sees the other's
# libraries; from the root of a checkout:
#
#     docker build -f deployments/docker/generator.Dockerfile --build-arg GENERATOR=my-generator:1.2 -t my-job:1.2 .
#
# The generator's image needs Python 3.11 or newer with venv; PYTHON names it where python3 is another. Its work
# directory, environment and programs stay as they are: the generator is started by name or path as ever.
ARG GENERATOR
FROM ${GENERATOR} AS build
USER 0:0
ARG PYTHON=python3
COPY pyproject.toml README.md LICENSE /build/
COPY src /build/src
COPY flows /build/flows
COPY tasks /build/tasks
COPY deployments /build/deployments
RUN ${PYTHON} -m venv /opt/cachewatch \
    && /opt/cachewatch/bin/pip install --no-cache-dir --disable-pip-version-check /build \
    && mkdir /opt/cachewatch/commands \
    && ln -s ../bin/prefect ../bin/cachewatch /opt/cachewatch/commands/

FROM ${GENERATOR}
USER 0:0
COPY --from=build /opt/cachewatch /opt/cachewatch
RUN install -d -o 10001 -g 10001 -m 0750 /var/lib/cachewatch && install -d -o 10001 -g 10001 -m 2775 /mnt/caches
# Only the two commands, behind all that the image has: `python3` stays the generator's.
ENV PATH=$PATH:/opt/cachewatch/commands \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    PREFECT_HOME=/tmp/prefect \
    CACHEWATCH_STATE=/var/lib/cachewatch
# Workers give the command.
ENTRYPOINT []
CMD ["cachewatch", "--help"]
USER 10001:10001
