// Command hpa answers what the replica calculator of Kubernetes gives for the cases on its standard
// input, one JSON object a line. Values are thousandths, as in the metrics APIs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
)

const tolerance = 0.1

var errNone = errors.New("not asked for")

type question struct {
	Current int32   `json:"current"`
	Target  int64   `json:"target"`
	Values  []int64 `json:"values"` // of each pod that has one; of all together if External
	// External: the metric is one sum and not one value of each pod.
	External bool `json:"external"`
}

// seen is a metrics client that knows one question.
type seen struct{ question }

func (s seen) GetResourceMetric(context.Context, v1.ResourceName, string, labels.Selector, string) (metrics.PodMetricsInfo, time.Time, error) {
	return nil, time.Time{}, errNone
}

func (s seen) GetObjectMetric(string, string, *autoscalingv2.CrossVersionObjectReference, labels.Selector) (int64, time.Time, error) {
	return 0, time.Time{}, errNone
}

func (s seen) GetRawMetric(string, string, labels.Selector, labels.Selector) (metrics.PodMetricsInfo, time.Time, error) {
	found := metrics.PodMetricsInfo{}
	for i, value := range s.Values {
		found[name(i)] = metrics.PodMetric{Timestamp: time.Now(), Value: value}
	}
	return found, time.Now(), nil
}

func (s seen) GetExternalMetric(string, string, labels.Selector) ([]int64, time.Time, error) {
	return s.Values, time.Now(), nil
}

func name(i int) string { return fmt.Sprintf("pod-%d", i) }

func answer(q question) (int32, error) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for i := 0; i < int(q.Current); i++ {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name(i), Namespace: "default"}, Status: v1.PodStatus{Phase: v1.PodRunning}}
		if err := indexer.Add(pod); err != nil {
			return 0, err
		}
	}
	calculator := podautoscaler.NewReplicaCalculator(seen{q}, corelisters.NewPodLister(indexer), 5*time.Minute, 30*time.Second)
	// The fields of Tolerances are not exported, and it has no constructor.
	within := *(*podautoscaler.Tolerances)(unsafe.Pointer(&[2]float64{tolerance, tolerance}))
	if q.External {
		replicas, _, _, err := calculator.GetExternalPerPodMetricReplicas(q.Current, q.Target, "queue", within, "default", &metav1.LabelSelector{})
		return replicas, err
	}
	replicas, _, _, err := calculator.GetMetricReplicas(q.Current, q.Target, "queue", within, "default", labels.Everything(), labels.Everything())
	return replicas, err
}

func main() {
	lines := json.NewDecoder(os.Stdin)
	for lines.More() {
		var q question
		if err := lines.Decode(&q); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		replicas, err := answer(q)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(replicas)
	}
}
