# SPDX-License-Identifier: Apache-2.0
"""What help() says."""

import importlib
import inspect
import pydoc
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

import frameworks
import job_keys

frameworks.need("torch")

import torch  # noqa: E402

import capstan.torch  # noqa: E402
from capstan.job_keys import SENTENCES  # noqa: E402
from capstan.overrides import types  # noqa: E402


class Help(unittest.TestCase):
    def test_keys_are_those_of_the_schema(self):
        found = job_keys.FILE.read_text()
        self.assertEqual(
            found, job_keys.text(), "run python/tests/job_keys.py"
        )

    def test_init_has_each_key_with_type_and_sentence(self):
        for init in capstan.init, capstan.torch.init:
            parameters = inspect.signature(init).parameters
            text = pydoc.plain(pydoc.render_doc(init))
            self.assertEqual(init.__annotations__["keys"], "Unpack[JobKeys]")
            self.assertEqual(types().keys(), SENTENCES.keys())
            for key, sentence in SENTENCES.items():
                self.assertEqual(parameters[key].annotation, types()[key])
                self.assertIn(f"{key}: {sentence}", text)
            self.assertEqual(parameters["keep_env"].default, False)
            with self.assertRaisesRegex(capstan.ConfigError, "no_such_key"):
                init(no_such_key=1)

    def test_the_process_group_is_there_by_default(self):
        init = capstan.torch.init
        found = inspect.signature(init).parameters["process_group"]
        self.assertEqual(
            [found.annotation, found.default], ["bool | None", None]
        )
        self.assertIn("PROCESS_GROUP:", pydoc.plain(pydoc.render_doc(init)))
        with self.assertRaisesRegex(capstan.ConfigError, "process_group is 0"):
            init(process_group=0)

    def test_rules_stand_side_by_side(self):
        text = pydoc.plain(pydoc.render_doc(capstan.torch.DistributedOptimizer))
        for row in "it runs", ".grad after", "clipping", "staleness", "restart":
            self.assertIn(f"\n    {row}  ", text)

    def test_an_older_torch_is_refused_at_import(self):
        needed = capstan.torch.torch_needed
        for version in "2.1.0", "2.6.0+cpu", "2.15.0a0+git1", "3.0":
            with mock.patch.object(torch, "__version__", version):
                importlib.reload(needed)
        for version in "1.13.1", "2.0.1+cu117":
            with mock.patch.object(torch, "__version__", version):
                with self.assertRaisesRegex(
                    capstan.ConfigError, "needs torch 2.1 or newer"
                ):
                    importlib.reload(needed)

    def test_an_older_framework_is_refused_by_name(self):
        has_framework = capstan.torch.torch_needed.has_framework
        self.assertFalse(has_framework())
        for module, old, new in (
            ("transformers.trainer", "4.35.2", "5.0.0rc1"),
            ("lightning", "2.0.9", "2.1dev"),
            ("pytorch_lightning", "1.9.0", "2.6.6"),
        ):
            name = module.split(".")[0]
            for version in old, new:
                package = SimpleNamespace(__version__=version)
                modules = {name: package, module: package}
                with mock.patch.dict(sys.modules, modules):
                    if version == new:
                        self.assertTrue(has_framework())
                        continue
                    with self.assertRaisesRegex(
                        capstan.ConfigError, f"{name} is {old}; .* needs {name}"
                    ):
                        has_framework()


if __name__ == "__main__":
    unittest.main()
