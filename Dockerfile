# fcorun on processors, or on NVIDIA GPUs by a build argument:
#
#   docker build -t fcorun .
#   docker build -t fcorun:cuda --build-arg EXTRAS=cuda,sites .
#   docker run --rm -v "$PWD:/work" --user "$(id -u):$(id -g)" fcorun algo=feddualavg data=lasso
#
# The command runs in /work, where outputs/ appears, and never as root.
FROM python:3.13-slim AS build
ARG EXTRAS=sites
WORKDIR /source
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY fcorun fcorun
COPY hydra_plugins hydra_plugins
COPY conf conf
RUN python -m venv /opt/fcorun && /opt/fcorun/bin/pip install --no-cache-dir ".[$EXTRAS]"

FROM python:3.13-slim
COPY --from=build /opt/fcorun /opt/fcorun
# Whatever user the command runs as, matplotlib and JAX keep their caches in a folder that this user can write.
ENV PATH=/opt/fcorun/bin:$PATH HOME=/home/fcorun PYTHONUTF8=1
RUN useradd --create-home --uid 1000 fcorun && mkdir /work && chmod 1777 /home/fcorun /work
# a number, by which Kubernetes sees that this is not root
USER 1000
WORKDIR /work
ENTRYPOINT ["fcorun"]
