"""Names that Ray's modules import from one another: the same thing in each module that has such a name.

Data only: a name, and the module of trialpod that has it. Which modules have which names is in ``ray_names.txt``.
"""

from __future__ import annotations

_TUNE = "trialpod.tune"
_RAY = "trialpod.compat.ray"

_CONSTANTS = (
    "CHECKPOINT_DIR_NAME CONFIG_PREFIX COPY_DIRECTORY_CHECKPOINTS_INSTEAD_OF_MOVING_ENV DEBUG_PRINT_INTERVAL "
    "DEFAULT_RESULTS_DIR DEFAULT_STORAGE_PATH DEFAULT_SYNC_PERIOD DEFAULT_SYNC_TIMEOUT ENV_CREATOR "
    "EPISODE_REWARD_MEAN EXPR_ERROR_PICKLE_FILE EXPR_META_FILE EXPR_PARAM_PICKLE_FILE JOB_META_FILE "
    "KNOWN_CATEGORIES MAX_DEBUG_TRIALS MAX_LEN_IDENTIFIER NULL_MARKER PINNED_OBJECT_PREFIX RAY_CHDIR_TO_TRIAL_DIR "
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE RLLIB_ACTION_DIST RLLIB_CONNECTOR RLLIB_INPUT RLLIB_MODEL "
    "RLLIB_PREPROCESSOR SERIALIZATION_THRESHOLD SETUP_TIME_THRESHOLD TEMP_MARKER TEST TRAINABLE_CLASS "
    "TRAIN_DATASET_KEY TRIAL_CLEANUP_THRESHOLD TRIAL_STATE_FILENAME VALID_SUMMARY_TYPES WANDB_ENV_VAR"
)
_RESULT_KEYS = (
    "AUTO_RESULT_KEYS DEBUG_METRICS DEFAULT_EXPERIMENT_NAME DEFAULT_METRIC DEFAULT_RESULT_KEYS DONE "
    "EPISODES_THIS_ITER EPISODES_TOTAL EXPERIMENT_TAG EXPR_ERROR_FILE EXPR_PARAM_FILE EXPR_PROGRESS_FILE "
    "EXPR_RESULT_FILE HOSTNAME MEAN_ACCURACY MEAN_LOSS NEG_MEAN_LOSS NODE_IP PID RESULT_DUPLICATE "
    "SHOULD_CHECKPOINT STDERR_FILE STDOUT_FILE TIMESTAMP TIMESTEPS_THIS_ITER TIMESTEPS_TOTAL TIME_THIS_ITER_S "
    "TIME_TOTAL_S TRAINING_ITERATION TRIAL_ID TRIAL_INFO"
)
_OF_TUNE = (
    "Callback CheckpointConfig Checkpoint CLIReporter Experiment ExperimentAnalysis FailureConfig "
    "PlacementGroupFactory Resources ResultGrid ResumeConfig RunConfig Stopper SyncConfig Trainable TuneConfig Tuner "
    "create_scheduler create_searcher grid_search register_trainable run sample_from with_parameters"
)
_HELPERS = "ExportFormat SafeFallbackEncoder is_nan is_nan_or_inf json_to_resources resources_to_json retry_fn"
_UTILS = "UtilMonitor date_str deep_update merge_dicts unflatten_dict unflattened_lookup warn_if_slow"
_SCHEDULERS = (
    "ASHAScheduler AsyncHyperBandScheduler FIFOScheduler HyperBandForBOHB HyperBandScheduler MedianStoppingRule PB2 "
    "PopulationBasedTraining PopulationBasedTrainingReplay ResourceChangingScheduler TrialScheduler"
)
_SEARCH = "BasicVariantGenerator ConcurrencyLimiter Repeater SearchAlgorithm SearchGenerator Searcher"
_STOPPERS = "CombinedStopper FunctionStopper MaximumIterationStopper NoopStopper TimeoutStopper"
_LOGGERS = (
    "CSVLogger CSVLoggerCallback JsonLogger JsonLoggerCallback LegacyLoggerCallback Logger LoggerCallback NoopLogger "
    "TBXLogger TBXLoggerCallback UnifiedLogger"
)
_REGISTRY = "get_trainable_cls is_function_trainable validate_trainable"
_MESSAGES = "AirVerbosity Verbosity UNDEFINED_METRIC_MODE UNDEFINED_SEARCH_SPACE UNRESOLVED_SEARCH_SPACE pretty_print"


def _each(home: str, names: str) -> dict[str, str]:
    return {name: f"{home}:{name}" for name in names.split()}


SHARED: dict[str, str] = {
    **_each(f"{_RAY}.constants", _CONSTANTS),
    **_each("trialpod.tune.result_keys", _RESULT_KEYS),
    **_each(_TUNE, _OF_TUNE),
    **_each(f"{_RAY}.tune_util", f"{_HELPERS} flatten_dict resource_dict_to_pg_factory unflatten_list_dict"),
    **_each("trialpod.tune.utils", _UTILS),
    **_each("trialpod.tune.schedulers", _SCHEDULERS),
    **_each("trialpod.tune.search", _SEARCH),
    **_each("trialpod.tune.search.sample", "Categorical Domain Float Function Integer"),
    **_each("trialpod.tune.stopper", _STOPPERS),
    **_each("trialpod.tune.logger", _LOGGERS),
    **_each(f"{_RAY}.registry", _REGISTRY),
    **_each(f"{_RAY}.small", _MESSAGES),
    **_each(f"{_RAY}.annotations", "Deprecated DeveloperAPI PublicAPI RayDeprecationWarning"),
    **_each(f"{_RAY}.exceptions", "GetTimeoutError RayActorError RayTaskError TuneError"),
    **_each(f"{_RAY}.util", "get_node_ip_address log_once"),
    **_each(f"{_RAY}.trainable_util", "TrainableUtil"),
    "EarlyStopping": "trialpod.tune.stopper:ExperimentPlateauStopper",
    "FunctionRunner": "trialpod.tune.trainable.function_trainable:FunctionTrainable",
    "CallbackList": f"{_RAY}.callback_list:CallbackList",
    "Trial": "trialpod.tune.trial:Trial",
    "TrialRunner": "trialpod.legacy.internals:TrialRunner",
    "RayTrialExecutor": "trialpod.legacy.internals:RayTrialExecutor",
    "TunerInternal": "trialpod.legacy.internals:TunerInternal",
    "ResourceRequest": "trialpod.tune.placement_groups:PlacementGroupFactory",
    "convert_to_experiment_list": "trialpod.legacy.experiment:_convert_to_experiment_list",
    "diagnose_serialization": "trialpod.tune.utils:diagnose_serialization",
    "durable": f"{_RAY}.small:durable",
    "get_session": "trialpod.tune.session:current",
    "session": f"{_RAY}.small:session",
    "tune": f"{_RAY}.small:tune",
    "cloudpickle": f"{_RAY}.small:cloudpickle",
}
