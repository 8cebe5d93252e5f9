"""The reasons of fetching a model, as `Reason` takes them: word, meaning, what to do, commands."""

from argosy_operator.api.conditions import kubectl

SOURCE_FORBIDDEN = (
    "SourceForbidden",
    "the hub or the store refuses to give the model",
    "Put a token or keys with the right to read into the Secret that spec.model.fetch.envFrom "
    "names. The Job reads it at its next start, within five minutes.",
    *kubectl.FETCH_STATES,
)
SOURCE_NOT_FOUND = (
    "SourceNotFound",
    "the hub or the store has no such model, or not this revision of it",
    "Correct spec.model.uri. If the commit has vanished, name one that exists.",
    kubectl.FETCHING,
)
SOURCE_UNREACHABLE = (
    "SourceUnreachable",
    "the hub or the store does not answer",
    "Let the pod reach it: name the proxy or the endpoint of your own in "
    "spec.model.fetch.env. The Job goes on by itself.",
    *kubectl.FETCH_STATES,
)
ONLY_PICKLES = (
    "OnlyPickles",
    "the model has no safetensors weights, only pickles, which can run code as they are read",
    "Choose a revision with *.safetensors files, or convert the weights.",
    kubectl.FETCHING,
)
FILES_INCOMPLETE = (
    "FilesIncomplete",
    "a file that came is not what its source says",
    "Look at what stands between the Job and the source, such as a proxy that cuts or changes "
    "answers, or a writer of the bucket. The Job tries again by itself.",
    kubectl.FETCHING,
)
VOLUME_FULL = (
    "VolumeFull",
    "the model does not fit into its claim",
    "Raise spec.model.fetch.size if the storage class can grow a claim, or name a larger one. "
    "Earlier commits stay in the claim: delete their folders if no pod serves them.",
    kubectl.CLAIMS,
    kubectl.FETCHING,
)
VOLUME_NOT_WRITABLE = (
    "VolumeNotWritable",
    "the Job cannot write into the claim",
    "Let the claim be mounted for writing by group 65532, or set userIds: Assigned in "
    "spec.pods where the cluster gives ids.",
    kubectl.CLAIMS,
    kubectl.FETCHING,
)
ACCOUNT_NOT_FOUND = (
    "ServiceAccountNotFound",
    "the ServiceAccount of the Job that fetches the model does not exist",
    "Create it in the fleet's namespace, or correct spec.model.fetch.serviceAccountName. The Job "
    "goes on by itself.",
    *kubectl.FETCH_STATES,
)
FETCHING_MODEL = (
    "FetchingModel",
    "a Job fetches the model; engine pods start when it is there",
    "",
    *kubectl.FETCH_STATES,
)
FETCHED = ("Fetched", "the model is in its claim")
IN_PLACE = ("InPlace", "the model is used where it is: nothing is fetched")
