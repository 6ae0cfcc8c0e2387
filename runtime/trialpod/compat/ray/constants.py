"""Constants of Ray's modules whose values scripts compare with, or build paths from."""

from __future__ import annotations

import os

from trialpod.tune.location.locations import DEFAULT_STORAGE

# ray.air.constants
PREPROCESSOR_KEY = "_preprocessor"
MODEL_KEY = "model"
EVALUATION_DATASET_KEY = "evaluation"
TRAIN_DATASET_KEY = "train"
TENSOR_COLUMN_NAME = "__value__"
MAX_REPR_LENGTH = 120
SESSION_MISUSE_LOG_ONCE_KEY = "air_warn_session_misuse"
CHECKPOINT_ID_ATTR = "_current_checkpoint_id"
LAZY_CHECKPOINT_MARKER_FILE = ".lazy_checkpoint_marker"
TIMESTAMP = "timestamp"
TIME_THIS_ITER_S = "time_this_iter_s"
TRAINING_ITERATION = "training_iteration"
EXPR_PARAM_FILE = "params.json"
EXPR_PARAM_PICKLE_FILE = "params.pkl"
EXPR_PROGRESS_FILE = "progress.csv"
EXPR_RESULT_FILE = "result.json"
EXPR_ERROR_FILE = "error.txt"
EXPR_ERROR_PICKLE_FILE = "error.pkl"
CHECKPOINT_TUNE_METADATA_FILE = ".tune_metadata"
COPY_DIRECTORY_CHECKPOINTS_INSTEAD_OF_MOVING_ENV = "TRAIN_COPY_DIRECTORY_CHECKPOINTS_INSTEAD_OF_MOVING"

# ray.train.constants
CHECKPOINT_DIR_NAME = "checkpoint_dir_name"
TRAIN_CHECKPOINT_SUBDIR = "checkpoints"
TUNE_CHECKPOINT_ID = "_current_checkpoint_id"
RESULT_FILE_JSON = "results.json"
WORKER_HOSTNAME = "_hostname"
WORKER_NODE_IP = "_node_ip"
WORKER_PID = "_pid"
RAY_CHDIR_TO_TRIAL_DIR = "RAY_CHDIR_TO_TRIAL_DIR"
RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE = "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE"
CHECKPOINT_METADATA_KEY = "checkpoint_metadata"
CHECKPOINT_RANK_KEY = "checkpoint_rank"
DEFAULT_STORAGE_PATH = os.path.expanduser(DEFAULT_STORAGE)

# ray.tune.constants and ray.tune.result
RAY_TUNE_CALLBACKS_ENV_VAR = "RAY_TUNE_CALLBACKS"
DEFAULT_RESULTS_DIR = DEFAULT_STORAGE_PATH
DEFAULT_EXPERIMENT_INFO_KEYS = ("trainable_name", "experiment_tag", "trial_id")
JOB_META_FILE = "job_status.json"
EXPR_META_FILE = "trial_status.json"

# Of single modules
NULL_MARKER = ".null_marker"
TEMP_MARKER = ".temp_marker"
DEBUG_PRINT_INTERVAL = 5
MAX_LEN_IDENTIFIER = 130
DEFAULT_SYNC_PERIOD = 300
DEFAULT_SYNC_TIMEOUT = 1800
PINNED_OBJECT_PREFIX = "ray.tune.PinnedObject:"
TRIAL_STATE_FILENAME = "trial_metadata.json"
WANDB_ENV_VAR = "WANDB_API_KEY"
SETUP_TIME_THRESHOLD = 10
MAX_DEBUG_TRIALS = 20
SERIALIZATION_THRESHOLD = 1e6
EPISODE_REWARD_MEAN = "episode_reward_mean"
TRIAL_CLEANUP_THRESHOLD = 100
VALID_SUMMARY_TYPES = (int, float)
CONFIG_PREFIX = "config"
TRAINABLE_CLASS = "trainable_class"
ENV_CREATOR = "env_creator"
RLLIB_MODEL = "rllib_model"
RLLIB_PREPROCESSOR = "rllib_preprocessor"
RLLIB_ACTION_DIST = "rllib_action_dist"
RLLIB_INPUT = "rllib_input"
RLLIB_CONNECTOR = "rllib_connector"
TEST = "__test__"
KNOWN_CATEGORIES = (
    TRAINABLE_CLASS,
    ENV_CREATOR,
    RLLIB_MODEL,
    RLLIB_PREPROCESSOR,
    RLLIB_ACTION_DIST,
    RLLIB_INPUT,
    RLLIB_CONNECTOR,
    TEST,
)
