-- Ask for the lease under each key. The rules are those of rules.py; times are µs of the server's clock.
-- Answers 1, fence, takeovers, again | 0, remaining µs, holder, 0 | 2, position, outcome, 0
local now = clock()
local now_text = text(now)
local plain_grant = '1,' .. now_text .. ',0,0'

-- Most requests of a batch have one ttl: compute what follows from it once.
local last_ttl, until_number, until_text, keep_ms
local function reckon(ttl, expired_kept_ms)
  last_ttl = ttl
  until_number = now + ttl
  until_text = text(until_number)
  keep_ms = math.ceil(ttl / 1000) + expired_kept_ms
end

local function keep(key, recorded)
  -- A position was promised a life of its own: never shorten it.
  if not recorded or redis.call('PTTL', key) < keep_ms then redis.call('PEXPIRE', key, keep_ms) end
end

local function held(key, waiting, by, remaining)
  -- Others may wait behind this one, who ask more seldom: all that is let go for a minute is told.
  if waiting == '1' then redis.call('HSET', key, 'awaited', text(now + 60000000)) end
  return '0,' .. text(remaining) .. ',' .. cjson.encode(by) .. ',0'
end

local function acquire(key, owner, ttl, position, heir, note, reclaim, waiting, index, expired_kept_ms, call)
  if ttl ~= last_ttl then reckon(ttl, expired_kept_ms) end
  local record = redis.call('HMGET', key, 'until', 'fence', 'position', 'parked_until', 'takeovers')
  local held_until, recorded = record[1], record[3]
  local takeovers = tonumber(record[5] or 0)

  if recorded and position ~= '' and tonumber(recorded) >= tonumber(position) then
    local outcome = redis.call('HMGET', key, 'outcome')[1]
    return '2,' .. text(recorded) .. ',' .. cjson.encode(outcome) .. ',0'
  end
  -- Free and not parked, as most are: nobody's name is needed to know that.
  local parked_until = record[4] and tonumber(record[4])
  local ran_out = held_until and held_until ~= '0'
  if ran_out or parked_until or reclaim ~= '' then
    held_until = tonumber(held_until or 0)
    parked_until = parked_until or 0
    local known = redis.call('HMGET', key, 'owner', 'heir', 'call')
    local last_owner = known[1] or ''
    if held_until > now then
      if last_owner ~= owner then return held(key, waiting, last_owner, held_until - now) end
      if until_number > held_until then
        redis.call('HSET', key, 'until', until_text)
        list(index, key, until_text)
      end
      keep(key, recorded)
      -- A reply that was lost, and asked for again within one call, is no second grant.
      return '1,' .. text(record[2]) .. ',' .. text(takeovers) .. (known[3] == call and ',0' or ',1')
    end
    local comes_back = ran_out and last_owner == owner and record[2] == reclaim
    if parked_until > now then
      local is_heir = heir ~= '' and known[2] == heir
      if not (is_heir or comes_back) then
        return held(key, waiting, known[2] or last_owner, parked_until - now)
      end
    elseif parked_until > 0 then
      redis.call('HDEL', key, 'heir', 'parked_until')
    end
    if reclaim ~= '' and not comes_back then return '0,0,' .. cjson.encode(last_owner) .. ',0' end
    if ran_out and last_owner ~= owner then
      takeovers = takeovers + 1
      redis.call('HSET', key, 'takeovers', text(takeovers))
    end
  end
  local fence = now_text
  if record[2] and tonumber(record[2]) >= now then fence = text(record[2] + 1) end
  redis.call('HSET', key, 'owner', owner, 'fence', fence, 'until', until_text, 'since', now_text,
    'note', note, 'call', call)
  list(index, key, until_text)
  keep(key, recorded)
  if fence == now_text and takeovers == 0 then return plain_grant end
  return '1,' .. fence .. ',' .. text(takeovers) .. ',0'
end

return for_each_key(acquire)
