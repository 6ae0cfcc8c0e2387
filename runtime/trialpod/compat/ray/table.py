"""Which module and name of Ray is which of trialpod. Data only; docs/ray-names.md shows it to people.

`MODULES` says where the names of an alias module are looked up, in order. `NAMES` are names that lie elsewhere.
`remedy` knows what has no counterpart, and what to do instead.
"""

from __future__ import annotations

VERSION = "2.60.0+trialpod"
"""What ``ray.__version__`` says: the release whose semantics are followed."""

_TUNE = "trialpod.tune"
_RAY = "trialpod.compat.ray"
_INTERNALS = "trialpod.legacy.internals"


def _below(parent: str, target: str, names: str) -> dict[str, tuple[str, ...]]:
    return {f"{parent}.{name}": (f"{target}.{name}",) for name in names.split()}


_SEARCHERS = {
    "ax": "trialpod.tune.search.ax_search",
    "bayesopt": "trialpod.tune.search.bayesopt_search",
    "bohb": "trialpod.tune.search.bohb_search",
    "hebo": "trialpod.tune.search.hebo_search",
    "hyperopt": "trialpod.tune.search.hyperopt_search",
    "nevergrad": "trialpod.tune.search.nevergrad_search",
    "optuna": "trialpod.tune.search.optuna.optuna_search",
    "zoopt": "trialpod.tune.search.zoopt_search",
}
_SEARCH_PARTS = (
    "basic_variant concurrency_limiter repeater sample search_algorithm search_generator searcher variant_generator"
)

MODULES: dict[str, tuple[str, ...]] = {
    "ray": (f"{_RAY}.core",),
    "ray.actor": (f"{_RAY}.core",),
    "ray.cloudpickle": ("cloudpickle",),
    "ray.cloudpickle.cloudpickle": ("cloudpickle.cloudpickle", "cloudpickle"),
    "ray.util.annotations": (f"{_RAY}.annotations",),
    "ray.exceptions": (f"{_RAY}.exceptions",),
    "ray.runtime_context": (f"{_RAY}.core",),
    "ray.util": (f"{_RAY}.util",),
    "ray.util.debug": (f"{_RAY}.util",),
    "ray.ml": (f"{_RAY}.train", _TUNE),
    "ray.ml.checkpoint": ("trialpod.tune.checkpoints.checkpoint",),
    "ray.ml.config": ("trialpod.tune.config", "trialpod.tune.trial_config", "trialpod.tune.sync_config"),
    "ray.tune": (_TUNE,),
    "ray.tune.analysis": ("trialpod.legacy.experiment_analysis",),
    "ray.tune.analysis.experiment_analysis": ("trialpod.legacy.experiment_analysis",),
    "ray.tune.callback": (f"{_RAY}.callback_list", "trialpod.tune.callback"),
    "ray.tune.constants": (f"{_RAY}.constants",),
    "ray.tune.context": ("trialpod.tune.session",),
    "ray.tune.durable_trainable": ("trialpod.legacy.durable",),
    "ray.tune.error": (f"{_RAY}.exceptions",),
    "ray.tune.execution": (),
    "ray.tune.execution.tune_controller": (),
    "ray.tune.execution.placement_groups": ("trialpod.tune.placement_groups",),
    "ray.tune.execution.ray_trial_executor": ("trialpod.legacy.internals",),
    "ray.tune.execution.trial_runner": ("trialpod.legacy.internals",),
    "ray.tune.experiment": ("trialpod.legacy.experiment",),
    "ray.tune.experiment.experiment": ("trialpod.legacy.experiment",),
    "ray.tune.experiment.trial": ("trialpod.legacy.internals", "trialpod.tune.trial"),
    "ray.tune.cluster_info": (f"{_RAY}.small",),
    "ray.tune.execution.cluster_info": (f"{_RAY}.small",),
    "ray.tune.function_runner": ("trialpod.tune.trainable.function_trainable", "trialpod.legacy.status_reporter"),
    "ray.tune.impl": (),
    "ray.tune.impl.tuner_internal": ("trialpod.legacy.internals",),
    "ray.tune.integration": (),
    **_below("ray.tune.integration", "trialpod.tune.integration", "keras lightgbm pytorch_lightning xgboost"),
    "ray.air.callbacks.keras": ("trialpod.tune.integration.keras",),
    "ray.air.integrations.keras": ("trialpod.tune.integration.keras",),
    "ray.train.xgboost": (),
    "ray.train.lightgbm": (),
    "ray.tune.logger": ("trialpod.tune.logger",),
    "ray.tune.logger.logger": ("trialpod.tune.logger",),
    "ray.tune.logger.csv": ("trialpod.tune.logger",),
    "ray.tune.logger.json": ("trialpod.tune.logger",),
    "ray.tune.logger.tensorboardx": ("trialpod.tune.logger",),
    "ray.tune.logger.aim": ("trialpod.tune.logger",),
    "ray.tune.logger.comet": ("trialpod.tune.logger",),
    "ray.tune.logger.mlflow": ("trialpod.tune.logger",),
    "ray.tune.logger.wandb": ("trialpod.tune.logger",),
    "ray.tune.integration.wandb": ("trialpod.tune.logger",),
    "ray.tune.integration.mlflow": ("trialpod.tune.logger",),
    "ray.tune.integration.comet": ("trialpod.tune.logger",),
    "ray.tune.progress_reporter": ("trialpod.tune.progress_reporter",),
    "ray.tune.ray_trial_executor": ("trialpod.legacy.internals",),
    "ray.tune.registry": (f"{_RAY}.registry", "trialpod.tune.registry"),
    "ray.tune.resources": ("trialpod.tune.resources",),
    "ray.tune.result": ("trialpod.tune.result_keys", f"{_RAY}.constants"),
    "ray.tune.result_grid": ("trialpod.tune.result_grid",),
    "ray.tune.sample": ("trialpod.tune.search.sample",),
    "ray.tune.schedulers": ("trialpod.tune.schedulers",),
    **_below(
        "ray.tune.schedulers",
        "trialpod.tune.schedulers",
        "async_hyperband hb_bohb hyperband median_stopping_rule pb2",
    ),
    "ray.tune.schedulers.pbt": ("trialpod.tune.schedulers.pbt", "trialpod.tune.schedulers.pbt_replay"),
    "ray.tune.schedulers.trial_scheduler": (
        "trialpod.tune.schedulers.trial_scheduler",
        "trialpod.tune.schedulers.fifo",
    ),
    "ray.tune.schedulers.resource_changing_scheduler": (
        "trialpod.tune.schedulers.resource_changing_scheduler",
        "trialpod.tune.schedulers.resource_distribution",
    ),
    "ray.tune.search": ("trialpod.tune.search", "trialpod.tune.search.sample"),
    **_below("ray.tune.search", "trialpod.tune.search", _SEARCH_PARTS),
    **{f"ray.tune.search.{name}": (home,) for name, home in _SEARCHERS.items()},
    **{f"ray.tune.search.{name}.{home.rpartition('.')[2]}": (home,) for name, home in _SEARCHERS.items()},
    "ray.tune.session": ("trialpod.tune.session", "trialpod.legacy.checkpoint_dir"),
    "ray.tune.stopper": ("trialpod.tune.stopper",),
    **{
        f"ray.tune.stopper.{name}": ("trialpod.tune.stopper",)
        for name in [
            "stopper",
            "experiment_plateau",
            "function_stopper",
            "maximum_iteration",
            "noop",
            "timeout",
            "trial_plateau",
        ]
    },
    "ray.tune.suggest": ("trialpod.tune.search", "trialpod.tune.search.sample"),
    "ray.tune.suggest.suggestion": ("trialpod.tune.search",),
    "ray.tune.suggest.search": ("trialpod.tune.search",),
    **_below("ray.tune.suggest", "trialpod.tune.search", _SEARCH_PARTS),
    **{f"ray.tune.suggest.{name}": (home,) for name, home in _SEARCHERS.items()},
    "ray.tune.syncer": ("trialpod.tune.sync_config", "trialpod.legacy.syncer"),
    "ray.tune.track": ("trialpod.legacy.track",),
    "ray.tune.trainable": (
        "trialpod.tune.trainable.trainable",
        "trialpod.tune.trainable.function_trainable",
        "trialpod.tune.shipping.parameters",
    ),
    "ray.tune.trainable.trainable": ("trialpod.tune.trainable.trainable",),
    "ray.tune.trainable.function_trainable": (
        "trialpod.tune.trainable.function_trainable",
        "trialpod.legacy.status_reporter",
    ),
    "ray.tune.trainable.trainable_fn_utils": ("trialpod.tune.session",),
    "ray.tune.trainable.util": ("trialpod.tune.shipping.parameters", "trialpod.tune.resources"),
    "ray.tune.trial": ("trialpod.legacy.internals", "trialpod.tune.trial"),
    "ray.tune.trial_runner": ("trialpod.legacy.internals",),
    "ray.tune.tune": (_TUNE,),
    "ray.tune.tune_config": ("trialpod.tune.config", "trialpod.tune.trial_config"),
    "ray.tune.tuner": ("trialpod.tune.tuner",),
    "ray.tune.utils": (f"{_RAY}.tune_util", "trialpod.tune.utils"),
    "ray.tune.utils.mock_trainable": (f"{_RAY}.mock_trainable",),
    "ray.tune.utils.util": (f"{_RAY}.tune_util", "trialpod.tune.utils"),
    "ray.tune.utils.serialization": ("trialpod.tune.utils",),
    "ray.tune.utils.placement_groups": ("trialpod.tune.placement_groups",),
    "ray.tune.utils.validation": ("trialpod.tune.utils",),
    "ray.train": (f"{_RAY}.train", _TUNE),
    "ray.train._checkpoint": ("trialpod.tune.checkpoints.checkpoint",),
    "ray.train._internal": (),
    "ray.train._internal.session": ("trialpod.tune.session",),
    "ray.train.base_trainer": (),
    "ray.train.constants": (f"{_RAY}.constants",),
    "ray.train.error": (),
    "ray.train.context": ("trialpod.tune.session",),
    "ray.train.session": ("trialpod.tune.session",),
    "ray.air": (f"{_RAY}.train", _TUNE),
    "ray.air.checkpoint": ("trialpod.tune.checkpoints.checkpoint",),
    "ray.air.constants": (f"{_RAY}.constants",),
    "ray.air.config": (
        "trialpod.tune.config",
        "trialpod.tune.trial_config",
        "trialpod.tune.sync_config",
        f"{_RAY}.train",
    ),
    "ray.air.integrations": (),
    "ray.air.integrations.comet": ("trialpod.tune.logger",),
    "ray.air.integrations.mlflow": ("trialpod.tune.logger",),
    "ray.air.integrations.wandb": ("trialpod.tune.logger",),
    "ray.air.execution": (),
    "ray.air.result": ("trialpod.tune.result",),
    "ray.air.session": ("trialpod.tune.session",),
}

NAMES: dict[str, str] = {
    **{
        f"ray.tune.{module}._BackwardsCompatibleNumpyRng": f"{_RAY}.numpy_rng:_BackwardsCompatibleNumpyRng"
        for module in ("sample", "search.sample", "suggest.sample")
    },
    "ray.tune.execution.ray_trial_executor._ExecutorEvent": "trialpod.legacy.internals:ExecutorEvent",
    "ray.tune.execution.ray_trial_executor._ExecutorEventType": f"{_INTERNALS}.executor:ExecutorEventType",
    "ray.tune.ray_trial_executor.ExecutorEventType": f"{_INTERNALS}.executor:ExecutorEventType",
    "ray.tune.execution.trial_runner._ResumeConfig": "trialpod.tune:ResumeConfig",
    "ray.logger": f"{_RAY}.small:logger",
    "ray.util.PublicAPI": f"{_RAY}.annotations:PublicAPI",
    "ray.util.DeveloperAPI": f"{_RAY}.annotations:DeveloperAPI",
    "ray.util.get_current_placement_group": f"{_RAY}.small:get_current_placement_group",
    "ray.util.placement_group.get_current_placement_group": f"{_RAY}.small:get_current_placement_group",
    "ray.train._internal.session.get_session": "trialpod.tune.session:current",
    "ray.train._internal.session._TrainingResult": "trialpod.tune.trainable.training_result:TrainingResult",
    "ray.train.base_trainer.TrainingFailedError": f"{_RAY}.train:TrainingFailedError",
    "ray.train.error.SessionMisuseError": f"{_RAY}.train:SessionMisuseError",
    "ray.tune.search.SEARCH_ALG_IMPORT": f"{_RAY}.small:SEARCH_ALG_IMPORT",
    "ray.tune.schedulers.SCHEDULER_IMPORT": f"{_RAY}.small:SCHEDULER_IMPORT",
    "ray.tune.experiment.convert_to_experiment_list": "trialpod.legacy.experiment:_convert_to_experiment_list",
    "ray.tune.resources.json_to_resources": f"{_RAY}.tune_util:json_to_resources",
    "ray.tune.resources.resources_to_json": f"{_RAY}.tune_util:resources_to_json",
    "ray.tune.function_runner.FunctionRunner": "trialpod.tune.trainable.function_trainable:FunctionTrainable",
    "ray.tune.analysis.experiment_analysis.Analysis": "trialpod.legacy.analysis:Analysis",
    "ray.tune.analysis.experiment_analysis.NewExperimentAnalysis": "trialpod.tune:ExperimentAnalysis",
    "ray.tune.experimental.output.AirVerbosity": f"{_RAY}.small:AirVerbosity",
    "ray.tune.logger.TFLogger": "trialpod.tune.logger:TBXLogger",
    **{
        f"ray.tune.{module}.{name}": f"{_RAY}.tune_util:{name}"
        for module in ("search.variant_generator", "suggest.variant_generator")
        for name in ("assign_value", "parse_spec_vars")
    },
    "ray.tune.schedulers.resource_changing_scheduler.evenly_distribute_cpus_gpus": (
        f"{_RAY}.small:evenly_distribute_cpus_gpus"
    ),
    "ray.tune.stopper.EarlyStopping": "trialpod.tune.stopper:ExperimentPlateauStopper",
    "ray.tune.TuneError": "trialpod.errors:TrialpodError",
    "ray.tune.EarlyStopping": "trialpod.tune.stopper:ExperimentPlateauStopper",
    "ray.tune.Analysis": "trialpod.legacy.analysis:Analysis",
    "ray.tune.analysis.Analysis": "trialpod.legacy.analysis:Analysis",
    "ray.tune.function": f"{_RAY}.small:function",
    "ray.tune.durable": f"{_RAY}.small:durable",
    "ray.tune.experiment.Trial": "trialpod.tune.trial:Trial",
    "ray.tune.search.create_searcher": "trialpod.tune.search:create_searcher",
    "ray.tune.search.UNRESOLVED_SEARCH_SPACE": f"{_RAY}.small:UNRESOLVED_SEARCH_SPACE",
    "ray.tune.search.UNDEFINED_SEARCH_SPACE": f"{_RAY}.small:UNDEFINED_SEARCH_SPACE",
    "ray.tune.search.UNDEFINED_METRIC_MODE": f"{_RAY}.small:UNDEFINED_METRIC_MODE",
    "ray.tune.logger.pretty_print": f"{_RAY}.small:pretty_print",
    "ray.tune.logger.DEFAULT_LOGGERS": "trialpod.legacy.loggers:DEFAULT_LOGGERS",
    "ray.tune.utils.pin_in_object_store": f"{_RAY}.core:put",
    "ray.tune.utils.get_pinned_object": f"{_RAY}.core:get",
    **{
        f"ray.tune.utils.{prefix}{name}": f"{_TUNE}.utils:{name}"
        for name in ("detect_checkpoint_function", "detect_config_single", "detect_reporter")
        for prefix in ("", "_")
    },
    "ray.train.xgboost.RayTrainReportCallback": "trialpod.tune.integration.xgboost:RayTrainReportCallback",
    "ray.train.lightgbm.RayTrainReportCallback": "trialpod.tune.integration.lightgbm:RayTrainReportCallback",
    "ray.air.ResourceRequest": "trialpod.tune.placement_groups:PlacementGroupFactory",
    "ray.air.execution.ResourceRequest": "trialpod.tune.placement_groups:PlacementGroupFactory",
    "ray.tune.trainable.TrainableUtil": f"{_RAY}.trainable_util:TrainableUtil",
    "ray.tune.trainable.util.TrainableUtil": f"{_RAY}.trainable_util:TrainableUtil",
    "ray.train.TrainContext": "trialpod.tune.session:TuneContext",
    "ray.train.CheckpointStrategy": "trialpod.tune:CheckpointConfig",
    "ray.train.world_size": "trialpod.tune.session:get_world_size",
    "ray.train.world_rank": "trialpod.tune.session:get_world_rank",
    "ray.train.local_rank": "trialpod.tune.session:get_local_rank",
}

_TRAINERS = (
    "a trial is one process: write the training as a function or a class Trainable, and give it what it needs with "
    "tune.with_resources"
)
_DATA = "load the data in the Trainable, or pass it with tune.with_parameters"
_CLUSTER = "trialpod has no cluster runtime of its own; use what your platform has for this"
INTERNAL = "it is internal to Ray; docs/ray-names.md lists what can be used"
"""What to do instead of a name that Ray has and does not document."""
_TESTS = "it belongs to Ray's own tests, which are not part of an installation"
_MIXINS = "call setup_mlflow() or setup_wandb() in the Trainable, or pass a logger callback to RunConfig"
_PRIVATE = "it marks temporary folders that trialpod does not have; tune.get_checkpoint() is what a trial starts from"

_REMEDIES: tuple[tuple[str, str], ...] = (
    ("ray.air.session.get_dataset_shard", _DATA),
    ("ray.air.AcquiredResources", _TRAINERS),
    ("ray.air.DataBatchType", _DATA),
    ("ray.air.DatasetConfig", _DATA),
    ("ray.air.config.DatasetConfig", _DATA),
    ("ray.train.get_dataset_shard", _DATA),
    ("ray.train.TRAIN_DATASET_KEY", _DATA),
    ("ray.train.DataConfig", _DATA),
    ("ray.train.xgboost", _TRAINERS),
    ("ray.train.lightgbm", _TRAINERS),
    ("ray.tune.integration.mlflow.mlflow_mixin", _MIXINS),
    ("ray.tune.integration.mlflow.MLflowTrainableMixin", _MIXINS),
    ("ray.tune.integration.wandb.wandb_mixin", _MIXINS),
    ("ray.tune.integration.wandb.WandbTrainableMixin", _MIXINS),
    ("ray.tune.integration.wandb.WandbLogger", "pass WandbLoggerCallback(...) in RunConfig(callbacks=[...])"),
    ("ray.tune.integration.mlflow.MLflowLogger", "pass MLflowLoggerCallback(...) in RunConfig(callbacks=[...])"),
    ("ray.tune.logger.MLFLowLogger", "pass MLflowLoggerCallback(...) in RunConfig(callbacks=[...])"),
    ("ray.tune.logger.MLFlowLogger", "pass MLflowLoggerCallback(...) in RunConfig(callbacks=[...])"),
    ("ray.tune.cli", "use the commands `trialpod results`, `best` and `explain`"),
    ("ray.tune.scripts", "use the commands `trialpod results`, `best` and `explain`"),
    ("ray.tune.commands", "use the commands `trialpod results`, `best` and `explain`"),
    ("ray.tune.automlboard", "use the commands `trialpod results`, `best` and `explain`"),
    ("ray.tune.tests", _TESTS),
    ("ray.tests", _TESTS),
    ("ray.tune.sklearn", "use the package tune-sklearn's successor of your choice, or write a function Trainable"),
    ("ray.tune.automl", "write the search space as a dict"),
    ("ray.tune.web_server", "`trialpod run --json` prints every event for programs"),
    ("ray.tune.cloud", "give RunConfig(storage_path='s3://...')"),
    ("ray.tune.experimental", "use tune.run or Tuner"),
    ("ray.tune.trainable.FuncCheckpointUtil", _PRIVATE),
    ("ray.tune.trainable.Session", "call tune.report, tune.get_checkpoint and tune.get_context"),
    ("ray.tune.utils.mock", "write your own stand-ins"),
    ("ray.tune.utils.release_test_util", "write your own"),
    (
        "ray.tune.execution.tune_controller",
        "`tune.run` and `Tuner` run experiments; the engine decides, not the script",
    ),
    ("ray.tune.examples", "the repository has examples of its own, in examples/"),
    ("ray.tune.suggest.sigopt", "use another search algorithm, tune.create_searcher lists them"),
    ("ray.tune.suggest.skopt", "use another search algorithm, such as bayesopt or optuna"),
    ("ray.tune.suggest.dragonfly", "use another search algorithm, such as bayesopt or optuna"),
    ("ray.tune.suggest.flaml", "use another search algorithm, such as optuna"),
    ("ray.tune.search.sigopt", "use another search algorithm, tune.create_searcher lists them"),
    ("ray.tune.search.skopt", "use another search algorithm, such as bayesopt or optuna"),
    ("ray.tune.search.dragonfly", "use another search algorithm, such as bayesopt or optuna"),
    ("ray.tune.search.flaml", "use another search algorithm, such as optuna"),
    ("ray.rllib", "RLlib needs Ray itself; train with another library in a Trainable"),
    ("ray.serve", _CLUSTER),
    ("ray.data", _DATA),
    ("ray.workflow", _CLUSTER),
    ("ray.dag", _CLUSTER),
    ("ray.job_submission", "`trialpod run`, or a TuneExperiment in a cluster, is the job"),
    ("ray.autoscaler", "the cluster's own autoscaler sees pending pods"),
    ("ray.cluster_utils", _CLUSTER),
    ("ray.dashboard", "`trialpod results`, `best` and `explain` show an experiment"),
    ("ray.client", "there is no server to connect to; trials run where the Tuner's backend runs them"),
    ("ray.ClientBuilder", "there is no server to connect to; trials run where the Tuner's backend runs them"),
    ("ray.experimental", _CLUSTER),
    ("ray.internal", _CLUSTER),
    ("ray.runtime_env", "in a cluster the image and the pod template say what a trial's environment is"),
    ("ray.widgets", _CLUSTER),
    ("ray.cross_language", "only Python is supported"),
    ("ray.cpp_function", "only Python is supported"),
    ("ray.java_", "only Python is supported"),
    ("ray.Language", "only Python is supported"),
    ("ray.LoggingConfig", "use the standard library's logging"),
    ("ray.timeline", "a trial's times are in its results"),
    ("ray.object_transfer_timeline", "a trial's times are in its results"),
    ("ray.profile", "use a profiler in the Trainable"),
    ("ray.show_in_", "there is no dashboard; tune.report shows metrics"),
    ("ray.get_webui_url", "there is no dashboard"),
    ("ray.projects", _CLUSTER),
    ("ray.jobs", _CLUSTER),
    ("ray.objects", _CLUSTER),
    ("ray.actors", _CLUSTER),
    ("ray.errors", "the exceptions are in ray.exceptions"),
    ("ray.register_custom_serializer", "define __reduce__ in the class"),
    ("ray.get_resource_ids", "tune.get_context().get_trial_resources() tells what a trial was granted"),
    ("ray._config", _CLUSTER),
)
_KINDS_OF_ID = [
    "ActorCheckpointID",
    "ActorClassID",
    "ActorID",
    "ClientID",
    "DynamicObjectRefGenerator",
    "FunctionID",
    "JobID",
    "NodeID",
    "ObjectRefGenerator",
    "PlacementGroupID",
    "TaskID",
    "UniqueID",
    "WorkerID",
    "LOCAL_MODE",
    "PYTHON_MODE",
    "SCRIPT_MODE",
    "WORKER_MODE",
    "connect",
    "disconnect",
    "_get_runtime_context",
]


_CHILDREN: dict[str, tuple[str, str]] = {
    "ray": (_CLUSTER, " ".join(_KINDS_OF_ID)),
    "ray.air": (
        _TRAINERS,
        "constants examples train util",
    ),
    "ray.air.execution": (
        _TRAINERS,
        (
            "AcquiredResources FixedResourceManager PlacementGroupResourceManager RayActorManager "
            "ResourceManager TrackedActor"
        ),
    ),
    "ray.train": (
        _TRAINERS,
        (
            "BackendConfig BaseTrainer CheckpointUploadMode DataParallelTrainer Predictor Preprocessor "
            "ReportedCheckpoint Trainer TrainerRestoreError TrainingCallback TrainingIterator "
            "UserCallback ValidationConfig WorkerGroup accelerate backend base_trainer batch_predictor "
            "callbacks collective constants data_parallel_trainer error examples gbdt_trainer "
            "get_all_reported_checkpoints horovod huggingface jax lightning mosaic predictor rl sklearn "
            "tensorflow torch trainer trainers utils v2"
        ),
    ),
    "ray.tune.integration": (
        "report from the library's own callback: tune.report(metrics, checkpoint=...)",
        "docker horovod kubernetes mxnet ray_train sagemaker tensorflow torch",
    ),
    "ray.tune.syncer": (
        "trials write to RunConfig(storage_path=...) directly; nothing has to be synchronised",
        (
            "CloudSyncer CommandBasedClient NodeSyncer SyncClient SyncerCallback detect_cluster_syncer "
            "get_cloud_sync_client get_node_syncer get_node_to_storage_syncer wait_for_sync"
        ),
    ),
    "ray.util": (
        _CLUSTER,
        (
            "ActorGroup ActorPool accelerators annotations check_open_ports check_serialize client collective "
            "connect dask data debug debugpy deregister_serializer disconnect get_current_placement_group "
            "get_placement_group init_service iter joblib list_named_actors lightgbm metrics ml_utils "
            "multiprocessing pdb placement_group placement_group_table placement_groups queue "
            "register_serializer remove_placement_group rpdb scheduling_strategies serialization sgd spark "
            "state timer tracing train xgboost actor_pool"
        ),
    ),
}
"""Names that Ray has in modules of which trialpod has a part: what is in neither is a mistake."""


def unsupported_names(module: str) -> list[str]:
    """Return the names in a module of Ray that are known and have no counterpart."""
    listed = _CHILDREN.get(module, ("", ""))[1].split()
    below = [name.removeprefix(f"{module}.") for name, _ in _REMEDIES if name.startswith(f"{module}.")]
    return sorted({*listed, *(name for name in below if "." not in name and not name.endswith("_"))})


def remedy(name: str) -> str | None:
    """Return what to do instead of a name of Ray that has no counterpart, None if it is not known."""
    for module, (text, names) in _CHILDREN.items():
        if name.startswith(f"{module}.") and name[len(module) + 1 :].partition(".")[0] in names.split():
            return text
    for prefix, text in _REMEDIES:
        if name == prefix or name.startswith(f"{prefix}.") or (prefix[-1] == "_" and name.startswith(prefix)):
            return text
    return None
