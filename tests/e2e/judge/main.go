// Judge says what Argo CD and Flux say of the objects of a folder in Git, with their own code: the
// gitops-engine's diff and health, with a health script in Lua as Argo CD runs it, and Flux's
// server-side diff and kstatus.
//
// It prints a line of JSON for each object whenever a verdict changes, and ends when its standard
// input is closed.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/argoproj/gitops-engine/pkg/diff"
	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/utils"
	lua "github.com/yuin/gopher-lua"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Verdict is what the two say of one object now.
type Verdict struct {
	Object string `json:"object"`
	// Sync is Argo CD's: Synced, or OutOfSync with what it would change.
	Sync string `json:"sync"`
	Diff string `json:"diff,omitempty"`
	// Health is Argo CD's: Healthy, Progressing, Degraded, Suspended, Missing or Unknown.
	Health string `json:"health"`
	// Drift is Flux's: unchanged, or the action that it would take.
	Drift string `json:"drift"`
	// Status is Flux's, by kstatus: Current, InProgress, Failed, Terminating or NotFound.
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

func main() {
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "of the cluster")
	script := flag.String("health", "", "Argo CD's health script of ServingDeployments")
	once := flag.String("object", "", "print Argo CD's health of this JSON file and end")
	flag.Parse()
	source, err := os.ReadFile(*script)
	fail(err)
	if *once != "" {
		fail(judgeFile(*once, source))
		return
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	fail(err)
	config.QPS, config.Burst = 100, 200
	kube, err := client.New(config, client.Options{})
	fail(err)
	flux := ssa.NewResourceManager(kube, nil, ssa.Owner{Field: "kustomize-controller"})
	over := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		over <- err
	}()
	last := map[string]Verdict{}
	for {
		objects, err := read(flag.Args()) // again: Git changes
		fail(err)
		for _, object := range objects {
			verdict := judge(kube, flux, object, source)
			if last[verdict.Object] != verdict {
				fail(json.NewEncoder(os.Stdout).Encode(verdict))
				last[verdict.Object] = verdict
			}
		}
		select {
		case <-over:
			return
		case <-time.After(2 * time.Second):
		}
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(1)
	}
}

// read returns the objects of YAML files, which may hold several documents.
func read(files []string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		some, err := utils.ReadObjects(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		objects = append(objects, some...)
	}
	return objects, nil
}

func judge(kube client.Client, flux *ssa.ResourceManager, git *unstructured.Unstructured, script []byte) Verdict {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	verdict := Verdict{Object: git.GetKind() + "/" + git.GetName(), Sync: "Synced"}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(git.GroupVersionKind())
	err := kube.Get(ctx, client.ObjectKeyFromObject(git), live)
	if apierrors.IsNotFound(err) {
		verdict.Sync, verdict.Health, verdict.Drift, verdict.Status = "OutOfSync", "Missing", "created", "NotFound"
		return verdict
	}
	if err != nil {
		verdict.Message = err.Error()
		return verdict
	}
	found, err := diff.Diff(git.DeepCopy(), live.DeepCopy())
	if err != nil {
		verdict.Message = err.Error()
	} else if found.Modified {
		verdict.Sync, verdict.Diff = "OutOfSync", between(found.NormalizedLive, found.PredictedLive)
	}
	said, err := health.GetResourceHealth(live, byLua(script))
	if err != nil {
		verdict.Message = err.Error()
	} else if said != nil {
		verdict.Health, verdict.Message = string(said.Status), said.Message
	}
	change, before, after, err := flux.Diff(ctx, git.DeepCopy(), ssa.DefaultDiffOptions())
	if err != nil {
		verdict.Message = err.Error()
	} else {
		verdict.Drift = string(change.Action)
		if before != nil && after != nil {
			old, _ := before.MarshalJSON()
			new, _ := after.MarshalJSON()
			verdict.Diff += between(old, new)
		}
	}
	result, err := status.Compute(live)
	if err != nil {
		verdict.Message = err.Error()
	} else {
		verdict.Status = string(result.Status)
	}
	return verdict
}

// between returns the specs of two versions of an object, for a person to compare.
func between(one, other []byte) string {
	spec := func(text []byte) string {
		var object struct {
			Spec json.RawMessage `json:"spec"`
		}
		if err := json.Unmarshal(text, &object); err != nil {
			return err.Error()
		}
		return string(object.Spec)
	}
	return spec(one) + " -> " + spec(other)
}

func judgeFile(file string, script []byte) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		return err
	}
	said, err := health.GetResourceHealth(object, byLua(script))
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(said)
}

// byLua runs a health script as Argo CD does: without the libraries that reach outside.
type byLua []byte

func (script byLua) GetResourceHealth(object *unstructured.Unstructured) (*health.HealthStatus, error) {
	if object.GetKind() != "ServingDeployment" {
		return nil, nil
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName:   lua.OpenPackage,
		lua.BaseLibName:   lua.OpenBase,
		lua.TabLibName:    lua.OpenTable,
		lua.StringLibName: lua.OpenString,
	} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			return nil, err
		}
	}
	state.SetGlobal("obj", value(state, object.Object))
	if err := state.DoString(string(script)); err != nil {
		return nil, err
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return nil, errors.New("the script returns no table")
	}
	return &health.HealthStatus{
		Status:  health.HealthStatusCode(lua.LVAsString(table.RawGetString("status"))),
		Message: lua.LVAsString(table.RawGetString("message")),
	}, nil
}

func value(state *lua.LState, of any) lua.LValue {
	switch it := of.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, item := range it {
			table.RawSetString(key, value(state, item))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, item := range it {
			table.Append(value(state, item))
		}
		return table
	case string:
		return lua.LString(it)
	case bool:
		return lua.LBool(it)
	case int64:
		return lua.LNumber(it)
	case float64:
		return lua.LNumber(it)
	}
	return lua.LNil
}
