# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From Python: a sparse model of four clinics
#
# scikit-learn's Wisconsin table of breast masses is partitioned among four simulated clinics of different sizes. Which
# features does a federated model need, and is it as good as a model trained on all rows in one place?

# %%
import os
import tempfile

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

import fcorun

os.chdir(tempfile.mkdtemp())
table = load_breast_cancer(as_frame=True)["frame"]
table["target"] = np.where(table["target"] == 0, "malignant", "benign")
rng = np.random.default_rng(0)
table["clinic"] = rng.choice(["Aarau", "Basel", "Lys", "Thun"], len(table), p=[0.4, 0.3, 0.2, 0.1])
table.groupby("clinic")["target"].value_counts().unstack()

# %% [markdown]
# A quarter of each clinic's rows is the test split, which only the scores at the end read. The numbers that are left
# out, as the rates of the algorithm, follow from the data.

# %%
data = fcorun.from_frame(
    table, target="target", client="clinic", name="masses", standardize="pooled", validation=0, test=0.25
)
fractions = [0.2, 0.1, 0.03, 0.01, 0.003]
experiment = fcorun.Experiment(
    algorithm=fcorun.FedDualAvg(),
    data=data,
    objective=fcorun.Logistic(ridge=1e-3),
    regularizer=fcorun.L1(relative=fractions),  # type: ignore # a list of numbers is an axis of a sweep
    rounds=300,
    eval_every=30,
)

# %% [markdown]
# Five strengths of the l1 norm, computed as one program. `relative` is a fraction of the smallest strength at which all
# coefficients are 0:

# %%
records = experiment.sweep("masses").records
for fraction, record in zip(fractions, records, strict=True):
    scores = record.scores
    test = scores[(scores["set"] == "test") & (scores["client"] == "")].iloc[0]
    print(f"{fraction:5}  {record.summary['final']['density'] * 30:4.0f} of 30 features   AUC {test['auc']:.3f}")

# %% [markdown]
# The metrics of a record are a table:

# %%
figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
for fraction, record in zip(fractions, records, strict=True):
    axis.plot(record.metrics["round"], record.metrics["train_loss"], label=f"{fraction}")
axis.set(xlabel="round", ylabel="mean training loss (nats)", yscale="log")
axis.legend(title="reg.relative", fontsize="small")
plt.show()
# %% [markdown]
# The largest coefficients of the third record: `value` on standardized columns, `value_original` in the columns' units:

# %%
chosen = records[2]
weights = chosen.coefficients
weights = weights.query("parameter == 'weights' and value != 0")
weights = weights.sort_values("value", key=abs, ascending=False)
weights[["feature", "value", "value_original"]].head(6).round(3)

# %% [markdown]
# The certified optimum of the same problem on all rows in one place, compared with the objective after 300 rounds:

# %%
baseline = fcorun.Experiment(
    algorithm=fcorun.Centralized(),
    data=data,
    objective=fcorun.Logistic(ridge=1e-3),
    regularizer=fcorun.L1(relative=fractions[2]),
)
optimum = baseline.run("optimum").summary["final"]["objective"]
print(f"objective {chosen.summary['final']['objective']:.4f} with clients, {optimum:.4f} on all rows together")

# %% [markdown]
# `estimator()` returns a fitted scikit-learn estimator for rows encoded by `encode`:

# %%
model = chosen.estimator()
features = chosen.encode(table.drop(columns="target"))
chance = model.predict_proba(features)[:, list(model.classes_).index("malignant")]
found = roc_auc_score(table["target"] == "malignant", chance)
print(f"AUC over all {len(table)} rows, those of training too: {found:.3f}")
