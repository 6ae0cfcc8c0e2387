-- Health of a TuneExperiment or a TuneTrial for Argo CD, from its conditions.
-- It agrees with kstatus, which Flux and others use: what runs as it should is as good as done.
local status = obj.status or {}
if obj.metadata.deletionTimestamp ~= nil then
  return {status = "Progressing", message = "being deleted"}
end
if (status.observedGeneration or -1) ~= obj.metadata.generation then
  return {status = "Progressing", message = "waiting for the operator"}
end

local found = {}
for _, condition in ipairs(status.conditions or {}) do
  found[condition.type] = condition
end
local function is(kind, truth)
  return found[kind] ~= nil and found[kind].status == truth
end
local function health(verdict, kind)
  return {status = verdict, message = found[kind].message}
end

if is("Stalled", "True") then return health("Degraded", "Stalled") end
-- Of an experiment it comes with Stalled. A trial that failed is a result; whether it is bad, its experiment says.
if is("Failed", "True") then return health("Healthy", "Failed") end
if is("Suspended", "True") then return health("Suspended", "Suspended") end
if is("Suspended", "False") then return health("Progressing", "Suspended") end
if is("Ready", "True") then return health("Healthy", "Ready") end
if found["Ready"] ~= nil then return health("Progressing", "Ready") end
return {status = "Progressing", message = "waiting for the operator"}
