-- The ledger: the truth about a run's jobs. Every change of state is one call of this script, so it is atomic.
--
-- KEYS[1]  the run's prefix, `nightcourt:{RUN}:`; every key below begins with it
-- KEYS[2]  the Celery queue's list, whose length `reap` reads
-- ARGV[1]  the command; ARGV[2] its arguments as a JSON object; ARGV[3...] payloads that the ledger never opens
--
-- Keys
--   run        hash    protocol, questions, lease_ms, max_attempts, window_jobs, window_bytes, as `open` set them;
--                      identity, identity_json: the model whose answers this run takes, set by the first claim;
--                      refused: a model that tried to claim and was another; tokens: the last fencing token;
--                      held_jobs, held_bytes: the window; counters: admitted, answered, failed, quarantined,
--                      attempts, reaped, republished, late_commits
--   job:KEY    hash    state (waiting | leased | done), payload, source, document, bytes, attempts, token, worker,
--                      error_kind, error: what the last attempt ended with
--   waiting    zset    jobs that nobody holds, by the time (ms) at which a message for them was last published
--   leases     zset    jobs that a worker holds, by the time (ms) at which its lease runs out
--   results    stream  outcomes that the collector has not made durable yet
--
-- A job is forgotten only after its result is durable elsewhere; until then it stays as `done`, so that a late or a
-- second commit finds it and is refused. Time is Redis's own: no worker's clock matters.

local prefix, queue = KEYS[1], KEYS[2]
local RUN, WAITING, LEASES, RESULTS = prefix .. 'run', prefix .. 'waiting', prefix .. 'leases', prefix .. 'results'
local args = cjson.decode(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function job_of(key) return prefix .. 'job:' .. key end
local function count(name, by) redis.call('HINCRBY', RUN, name, by or 1) end
local function setting(name) return tonumber(redis.call('HGET', RUN, name)) end

-- Whether this token still holds the job. Only the last claim's token does: an older worker is fenced off.
local function holds(key, token)
  local held = redis.call('HMGET', job_of(key), 'state', 'token')
  return held[1] == 'leased' and tonumber(held[2]) == token
end

-- The job's one result: out of both indexes, counted, and appended to the stream.
local function finish(key, status, outcome)
  local job = job_of(key)
  local kept = redis.call('HMGET', job, 'document', 'source', 'attempts', 'worker')
  redis.call('HSET', job, 'state', 'done')
  redis.call('HDEL', job, 'payload', 'source')
  redis.call('ZREM', WAITING, key)
  redis.call('ZREM', LEASES, key)
  count(status)
  redis.call('XADD', RESULTS, '*', 'job', key, 'document', kept[1], 'source', kept[2], 'attempt', kept[3],
    'worker', kept[4] or '', 'finished_ms', string.format('%.0f', now), 'outcome', outcome)
end

-- Back to waiting after an attempt that had no outcome, or set aside when that was the last attempt allowed.
local function retry_or_quarantine(key, kind, reason)
  local job = job_of(key)
  redis.call('HSET', job, 'error_kind', kind, 'error', reason)
  local attempts = tonumber(redis.call('HGET', job, 'attempts'))
  if attempts >= setting('max_attempts') then
    finish(key, 'quarantined', cjson.encode({
      status = 'quarantined', kind = kind, reason = string.format('%s (attempt %d, the last allowed)', reason, attempts),
    }))
    return 'quarantined'
  end
  redis.call('HSET', job, 'state', 'waiting')
  redis.call('ZREM', LEASES, key)
  redis.call('ZADD', WAITING, now, key)
  return 'waiting'
end

local commands = {}

-- Create the run, or find it as it was. Returns {'opened'}, or {'protocol', FOUND} for another version's ledger.
function commands.open()
  local protocol = redis.call('HGET', RUN, 'protocol')
  if protocol and protocol ~= args.protocol then return { 'protocol', protocol } end
  redis.call('HSET', RUN, 'protocol', args.protocol, 'questions', ARGV[3], 'lease_ms', args.lease_ms,
    'max_attempts', args.max_attempts, 'window_jobs', args.window_jobs, 'window_bytes', args.window_bytes)
  if args.identity then redis.call('HSET', RUN, 'identity', args.identity) end
  redis.call('HDEL', RUN, 'refused')
  return { 'opened' }
end

-- Take in jobs until the window is full; ARGV[3...] holds each job's document id, payload and source. A job that is
-- here already is left as it is. Returns {how many of the list are settled, the keys that are new and need a message}.
function commands.admit()
  local jobs, bytes = setting('window_jobs'), setting('window_bytes')
  local held = redis.call('HMGET', RUN, 'held_jobs', 'held_bytes')
  local held_jobs, held_bytes = tonumber(held[1] or 0), tonumber(held[2] or 0)
  local added, settled = {}, 0
  for index, key in ipairs(args.keys) do
    local at = 3 * index
    local document, payload, source = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    if redis.call('EXISTS', job_of(key)) == 0 then
      local size = #payload + #source
      -- One job is always let in, however large: else a document over the byte window would wait for ever.
      if held_jobs > 0 and (held_jobs >= jobs or held_bytes + size > bytes) then break end
      held_jobs, held_bytes = held_jobs + 1, held_bytes + size
      redis.call('HSET', job_of(key), 'state', 'waiting', 'document', document, 'payload', payload, 'source', source,
        'bytes', size, 'attempts', 0)
      redis.call('ZADD', WAITING, now, key)
      added[#added + 1] = key
    end
    settled = index
  end
  redis.call('HSET', RUN, 'held_jobs', held_jobs, 'held_bytes', held_bytes)
  count('admitted', #added)
  return { settled, added }
end

-- Take a lease; the attempt is counted here, before any work, so that a job that kills its worker is found out.
-- Returns {'claimed', token, attempt, payload}, {'refused', the run's model} or {'gone'} (done, held or unknown).
function commands.claim()
  local job = job_of(args.key)
  if redis.call('HGET', job, 'state') ~= 'waiting' then return { 'gone' } end
  local identity = redis.call('HGET', RUN, 'identity')
  if not identity then
    redis.call('HSET', RUN, 'identity', args.identity)
  elseif identity ~= args.identity then
    redis.call('HSET', RUN, 'refused', ARGV[3])
    return { 'refused', identity }
  end
  redis.call('HSETNX', RUN, 'identity_json', ARGV[3])
  local token = redis.call('HINCRBY', RUN, 'tokens', 1)
  local attempt = redis.call('HINCRBY', job, 'attempts', 1)
  count('attempts')
  redis.call('HSET', job, 'state', 'leased', 'token', token, 'worker', args.worker)
  redis.call('ZREM', WAITING, args.key)
  redis.call('ZADD', LEASES, now + setting('lease_ms'), args.key)
  return { 'claimed', token, attempt, redis.call('HGET', job, 'payload') }
end

-- Hold on to a lease. Returns 1, or 0 when it is lost: the worker may finish, but its commit will be refused.
function commands.renew()
  if not holds(args.key, args.token) then return 0 end
  redis.call('ZADD', LEASES, now + setting('lease_ms'), args.key)
  return 1
end

-- Store a job's outcome, once: the first valid token wins. Returns 'committed' or 'late'.
function commands.commit()
  if not holds(args.key, args.token) then
    count('late_commits')
    return 'late'
  end
  finish(args.key, args.status, ARGV[3])
  return 'committed'
end

-- End an attempt that had no outcome. Returns 'waiting' (publish it again), 'quarantined' or 'late'.
function commands.fail()
  if not holds(args.key, args.token) then return 'late' end
  return retry_or_quarantine(args.key, args.kind, args.reason)
end

-- Hand a job back untouched, on an orderly stop: the attempt is not counted. Returns 'waiting' or 'late'.
function commands.release()
  if not holds(args.key, args.token) then return 'late' end
  redis.call('HINCRBY', job_of(args.key), 'attempts', -1)
  count('attempts', -1)
  redis.call('HSET', job_of(args.key), 'state', 'waiting')
  redis.call('ZREM', LEASES, args.key)
  redis.call('ZADD', WAITING, now, args.key)
  return 'waiting'
end

-- End the attempts of a worker that is known to be dead, without waiting for its leases. Returns keys to publish.
function commands.abandon()
  local publish = {}
  for _, key in ipairs(redis.call('ZRANGE', LEASES, 0, -1)) do
    if redis.call('HGET', job_of(key), 'worker') == args.worker
      and retry_or_quarantine(key, 'worker_lost', args.reason) == 'waiting' then
      publish[#publish + 1] = key
    end
  end
  return publish
end

-- Take back expired leases, and find jobs whose message was lost. Anyone may call it at any time.
-- The queue is first in, first out: when fewer messages are queued than jobs wait, the jobs published longest ago are
-- those without one, once they are older than the grace that a worker has to claim what it popped. A message too many
-- does no harm. Returns keys to publish.
function commands.reap()
  local publish = {}
  for _, key in ipairs(redis.call('ZRANGE', LEASES, '-inf', now, 'BYSCORE', 'LIMIT', 0, 1000)) do
    local worker = redis.call('HGET', job_of(key), 'worker')
    count('reaped')
    if retry_or_quarantine(key, 'worker_lost',
      'worker ' .. worker .. ' fell silent and its lease ran out') == 'waiting' then
      publish[#publish + 1] = key
    end
  end
  local lost = redis.call('ZCARD', WAITING) - redis.call('LLEN', queue) - #publish
  if lost > 0 then
    local old = redis.call('ZRANGE', WAITING, '-inf', now - args.grace_ms, 'BYSCORE', 'LIMIT', 0, math.min(lost, 1000))
    for _, key in ipairs(old) do
      redis.call('ZADD', WAITING, now, key)
      count('republished')
      publish[#publish + 1] = key
    end
  end
  return publish
end

-- Drop results that are durable elsewhere, with their jobs; this is what makes room in the window.
function commands.forget()
  for index, entry in ipairs(args.entries) do
    redis.call('XDEL', RESULTS, entry)
    local job = job_of(args.keys[index])
    local bytes = redis.call('HGET', job, 'bytes')
    if bytes and redis.call('HGET', job, 'state') == 'done' then
      redis.call('DEL', job)
      count('held_jobs', -1)
      count('held_bytes', -tonumber(bytes))
    end
  end
  return redis.status_reply('OK')
end

return commands[ARGV[1]]()
