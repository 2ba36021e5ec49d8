"""Data: datasets, samplers, and `DataLoader`, which makes batches ahead in other processes.

>>> from genesis.data import DataLoader
>>> [batch.tolist() for batch in DataLoader(range(4), batch_size=2)]
[[0, 1], [2, 3]]
"""

from genesis.data.collate import default_collate, pad_collate
from genesis.data.dataset import (
    ChainDataset, ConcatDataset, Dataset, IterableDataset, MapDataset, StackDataset, Subset,
    TensorDataset, random_split,
)  # fmt: skip
from genesis.data import augment
from genesis.data.loader import DataLoader
from genesis.data.sampler import (
    BatchSampler, BucketBatchSampler, DistributedSampler, RandomSampler, Sampler, SeededSampler,
    SequentialSampler, SubsetRandomSampler, WeightedRandomSampler,
)  # fmt: skip
from genesis.data.readers import ImageFolder, NumpyDataset, TableDataset, TarDataset, TextLines
from genesis.data.worker import WorkerFailed, WorkerInfo, get_worker_info, shard

__all__ = [
    "BatchSampler", "BucketBatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset",
    "DistributedSampler", "ImageFolder", "IterableDataset", "MapDataset", "NumpyDataset",
    "RandomSampler", "Sampler", "SeededSampler", "SequentialSampler", "StackDataset", "Subset",
    "SubsetRandomSampler", "TableDataset", "TarDataset", "TensorDataset", "TextLines",
    "WeightedRandomSampler", "WorkerFailed", "WorkerInfo", "augment", "default_collate",
    "get_worker_info", "pad_collate", "random_split", "shard",
]  # fmt: skip
