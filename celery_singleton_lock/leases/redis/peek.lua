-- Answers {now, {field, value, ...}}: the record under KEYS[1] and the server's time in µs
local time = redis.call('TIME')
return {string.format('%.0f', time[1] * 1000000 + time[2]), redis.call('HGETALL', KEYS[1])}
