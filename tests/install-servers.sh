#!/bin/sh
# Valkey and PostgreSQL come from PyPI with the test extra. These come from apt, where we may use it;
# where we may not, the tests that need them are skipped and say so.
set -eu
missing=""
have() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/usr/lib/rabbitmq/bin/$1" ]; }
have redis-server || missing="$missing redis-server"
have mariadbd || have mysqld || missing="$missing mariadb-server"
have prometheus && have promtool || missing="$missing prometheus"
have rabbitmq-server || missing="$missing rabbitmq-server"
# Not a server, but what looks at the pages of Flower.
have chromium || missing="$missing chromium"
# Not a server, but what reads docker-compose.yml.
docker compose version >/dev/null 2>&1 || have docker-compose || missing="$missing docker-compose"
# Not a server, but what makes a process believe that it is another time.
ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || missing="$missing libfaketime"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing$missing"
  # The tests start their own: nothing of this should run as a service.
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  apt-get update -qq
  # shellcheck disable=SC2086
  apt-get install -qq -y --no-install-recommends $missing >/dev/null
else
  echo "not installed, and not installable here:$missing (their tests will be skipped)"
fi
