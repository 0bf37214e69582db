# One image for beat, worker and Flower. The first stage has the tools to build; the second has none of them.
FROM python:3.13.1-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /venv
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY celery_singleton_lock celery_singleton_lock
RUN /venv/bin/pip install '.[flower,ledger,metrics,postgres]'

FROM python:3.13.1-slim-bookworm
# A number, so that Kubernetes can see that it is not root.
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin shop
COPY --from=build /venv /venv
COPY example_project /app/example_project
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
USER 10001
# exec form: signals reach Celery itself, which ends its tasks before it goes.
ENTRYPOINT ["celery", "-A", "example_project.app"]
CMD ["worker"]
