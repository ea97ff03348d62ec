# A run on the CPU. Written without a Docker daemon at hand: this file has not been built.
#
#   docker build -t sgmcmc .
#   docker run --rm -v "$PWD:/work" sgmcmc train --task pde_source
#
# The default wheels of torch for Linux bring CUDA's libraries, some gigabytes. An index of wheels
# for the CPU makes the image smaller: --build-arg TORCH_INDEX=ADDRESS.
FROM python:3.12-slim AS build
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.12-slim
ARG TORCH_INDEX=""
RUN if [ -n "$TORCH_INDEX" ]; then \
      pip install --no-cache-dir --index-url "$TORCH_INDEX" torch torchvision; \
    fi
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[fast]" && sgmcmc --version
WORKDIR /work
ENTRYPOINT ["sgmcmc"]
