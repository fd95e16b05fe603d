# SPDX-License-Identifier: Apache-2.0
"""A small BERT with Hugging Face's Trainer, on sentences made here.

A sentence is of class 1 if it has more of the upper half of the words.
bert_tiny.py is the same with Capstan.

torchrun --nproc_per_node 2 bert_tiny_plain.py
"""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

WORDS, LENGTH = 64, 12


class Sentences(Dataset):
    """COUNT sentences of LENGTH words and their classes."""

    def __init__(self, count: int):
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(WORDS, (count, LENGTH), generator=generator)
        upper = (self.words >= WORDS // 2).sum(1)
        self.classes = (upper > LENGTH // 2).long()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[i], "labels": self.classes[i]}


def network() -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=LENGTH,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    trainer = Trainer(
        model,
        TrainingArguments(
            "bert_tiny",
            num_train_epochs=arguments.epochs,
            per_device_train_batch_size=32,
            warmup_steps=10,
            max_grad_norm=1.0,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=Sentences(arguments.samples),
        optimizers=(optimizer, None),
    )
    result = trainer.train()
    if trainer.is_world_process_zero():
        print(f"loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
