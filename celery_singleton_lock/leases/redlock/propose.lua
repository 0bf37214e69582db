-- Phase 1: take the lease under each key for an owner, if it is free. If the guessed fence raises the counter,
-- and is about the time, that is phase 2 as well. Otherwise the record is `pending`: the fence beside it is
-- an earlier grant's. It says so by `pending` being equal to `fence`, so that whatever raises the fence ends it.
-- Answers a vote, see quorum.py
local now = clock()
local now_text = text(now)

local function keep(key, recorded, ms)
  -- A position was promised a life of its own: never shorten it.
  if not recorded or redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end

local function held(by, remaining, kind, counter)
  return '0,' .. text(remaining) .. ',' .. cjson.encode(by) .. ',' .. kind .. ',' .. counter
end

local function propose(key, owner, ttl, position, heir, note, reclaim, index, call, attempt, guess, guess_within,
                       news_for, pending_for, expired_kept_ms)
  local record = redis.call('HMGET', key, 'until', 'fence', 'position', 'parked_until', 'takeovers', 'pending')
  local held_until, counter, recorded = record[1], record[2] or '0', record[3]
  local takeovers = record[5] or '0'
  local base = tonumber(counter) > now and counter or now_text
  local since = now_text

  if recorded and position ~= '' and tonumber(recorded) >= tonumber(position) then
    local outcome = redis.call('HMGET', key, 'outcome')[1]
    return '2,' .. text(recorded) .. ',' .. cjson.encode(outcome or '') .. ',0,' .. counter
  end
  local ran_out = held_until and held_until ~= '0'
  local parked_until = record[4] and tonumber(record[4])
  if ran_out or parked_until or reclaim ~= '' then
    held_until = tonumber(held_until or 0)
    parked_until = parked_until or 0
    local known = redis.call('HMGET', key, 'owner', 'heir', 'call', 'claim', 'attempt', 'since')
    local last_owner = known[1] or ''
    local is_pending = record[6] == counter
    if held_until > now then
      local is_older = known[4] == call and tonumber(attempt) < tonumber(known[5] or 0)
      if last_owner ~= owner or (is_pending and is_older) then
        local is_news = now - tonumber(known[6] or 0) < tonumber(news_for)
        return held(last_owner, held_until - now, is_pending and '0' or is_news and '2' or '1', counter)
      end
      if not is_pending then
        -- The owner asks again. Its earlier calls can no more withdraw it; nor can this one, which did
        -- not make the grant.
        if known[4] == call then
          if not is_older then redis.call('HSET', key, 'attempt', attempt) end
        elseif known[3] ~= call then
          redis.call('HSET', key, 'claim', call, 'attempt', attempt)
        end
        local longer = now + ttl
        if longer > held_until then
          redis.call('HSET', key, 'until', text(longer))
          list(index, key, text(longer))
        end
        keep(key, recorded, math.ceil(ttl / 1000) + expired_kept_ms)
        return '3,' .. counter .. ',' .. takeovers .. (known[3] == call and ',0,' or ',1,') .. counter
      end
      if known[4] == call and known[5] == attempt then
        -- Sent twice: the same answer, or two requests of one call would be given two fences.
        since = known[6]
        base = tonumber(counter) > tonumber(since) and counter or since
      end
    end
    local comes_back = ran_out and not is_pending and last_owner == owner and counter == reclaim
    if parked_until > now then
      local is_heir = heir ~= '' and known[2] == heir
      if not (is_heir or comes_back) then
        return held(known[2] or last_owner, parked_until - now, '1', counter)
      end
    elseif parked_until > 0 then
      redis.call('HDEL', key, 'heir', 'parked_until')
    end
    if reclaim ~= '' and not comes_back and not (is_pending and known[4] == call) then
      return held(last_owner, 0, '1', counter)
    end
    if ran_out and not is_pending and last_owner ~= owner then
      takeovers = text(takeovers + 1)
      redis.call('HSET', key, 'takeovers', takeovers)
    end
  end
  if tonumber(counter) < tonumber(guess) and math.abs(guess - now) < tonumber(guess_within) then
    local until_text = text(now + ttl)
    redis.call('HSET', key, 'owner', owner, 'fence', guess, 'until', until_text, 'since', now_text,
      'note', note, 'claim', call, 'attempt', attempt, 'call', call, 'lapsed', ran_out and '1' or '0')
    list(index, key, until_text)
    keep(key, recorded, math.ceil(ttl / 1000) + expired_kept_ms)
    return '3,' .. guess .. ',' .. takeovers .. ',0,' .. guess
  end
  redis.call('HSET', key, 'owner', owner, 'until', text(now + math.min(ttl, pending_for)), 'since', since,
    'note', note, 'claim', call, 'attempt', attempt, 'pending', counter, 'fence', counter,
    'lapsed', ran_out and '1' or '0')
  keep(key, recorded, math.ceil(ttl / 1000) + expired_kept_ms)
  return '1,' .. base .. ',' .. takeovers .. ',0,' .. counter
end

return for_each_key(propose)
